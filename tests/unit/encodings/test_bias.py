"""Biases on the logits: their formulas, their symmetry, and which of them are Toeplitz."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.foreseeing import foreseen
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import (
    Encoding,
    alibi,
    alibi_slopes,
    fire,
    fire_init,
    fire_network,
    kerple,
    t5,
    t5_bucket,
    t5_init,
)
from toposcope.encodings.record import LogitBias

TOEPLITZ: dict[str, Callable[[], Encoding]] = {
    "t5 both ways": lambda: t5_init(3, buckets=16, max_distance=40, std=1.0),
    "t5 backwards": lambda: t5_init(3, buckets=16, max_distance=40, std=1.0, bidirectional=False),
    "alibi": lambda: alibi(3),
    "alibi linear": lambda: alibi(3, symmetric=False),
    "kerple log": lambda: kerple(3, r1=[1.0, 2.0, 3.0], r2=0.5),
    "kerple power": lambda: kerple(3, kernel="power", r2=[0.5, 1.0, 2.0]),
}


def bias(encoding: Encoding) -> LogitBias:
    assert encoding.bias is not None
    return encoding.bias


@pytest.mark.parametrize("case", TOEPLITZ)
@given(seed=st.integers(0, 10_000), shift=st.integers(1, 100_000))
@settings(max_examples=20, deadline=None)
def test_toeplitz_biases_see_the_distance_only(case: str, seed: int, shift: int) -> None:
    b = bias(TOEPLITZ[case]())
    draw = np.random.default_rng(seed)
    i, j = draw.integers(0, 300, 6), draw.integers(0, 300, 8)
    table = b.table(i, j)
    assert b.toeplitz
    assert table.shape == (3, 6, 8)
    np.testing.assert_allclose(b.table(i + shift, j + shift), table, rtol=1e-12)
    by_offset = b.by_offset((i[:, None] - j).ravel()).reshape(3, 6, 8)
    np.testing.assert_allclose(by_offset, table, rtol=1e-12)
    whole = b.table(np.arange(300), np.arange(300))
    # numpy's power rounds the last bit by the lane that a number falls into
    np.testing.assert_allclose(table, whole[:, i[:, None], j], rtol=1e-15)


def test_alibi_by_hand() -> None:
    np.testing.assert_allclose(alibi_slopes(4), [2**-2, 2**-4, 2**-6, 2**-8])
    np.testing.assert_allclose(alibi_slopes(3), [2**-4, 2**-8, 2**-2])
    table = bias(alibi(4, scale=2.0)).table([5], [3, 5, 9])
    np.testing.assert_allclose(table[0, 0], [-2 * 2 / 4, 0, -2 * 4 / 4])
    np.testing.assert_allclose(bias(alibi(4, symmetric=False)).table([5], [3, 9])[0, 0], [-2 / 4, 4 / 4])


def test_alibi_takes_other_slopes() -> None:
    steep = np.exp(-np.arange(1, 5) / 4)
    np.testing.assert_allclose(bias(alibi(4, slopes=steep)).by_offset([3])[:, 0], -3 * steep)


def test_a_rounded_bias_is_zero_at_the_query_and_not_toeplitz() -> None:
    rounded = bias(alibi(12, slope_dtype="bfloat16", table_dtype="bfloat16"))
    at = np.arange(600)
    table = rounded.table(at, at)
    assert not rounded.toeplitz
    assert not table[:, at, at].any()
    assert (table[:, 599, 598] != table[:, 1, 0]).any()
    with pytest.raises(BadValue, match=r"use table\(\)"):
        rounded.by_offset([1])


def test_kerple_by_hand() -> None:
    log = bias(kerple(2, r1=[1.0, 2.0], r2=[1.0, 0.5])).by_offset([0, -4, 4])
    np.testing.assert_allclose(log, [[0, -math.log(5), -math.log(5)], [0, -2 * math.log(3), -2 * math.log(3)]])
    power = bias(kerple(1, kernel="power", r1=3.0, r2=0.5)).by_offset([9])
    assert power.item() == pytest.approx(-9.0)


def test_t5_buckets_by_hand() -> None:
    """32 buckets both ways: 16 per side, 8 exact, then powers of sqrt 2 from 8 to 128."""
    distance = np.array([0, 1, 7, 8, 11, 12, 16, 32, 64, 127, 128, 10**9])
    np.testing.assert_array_equal(t5_bucket(-distance), [0, 1, 7, 8, 8, 9, 10, 12, 14, 15, 15, 15])
    np.testing.assert_array_equal(t5_bucket(distance[1:]), 16 + t5_bucket(-distance[1:]))
    np.testing.assert_array_equal(t5_bucket([0, 5, 100], bidirectional=False), 0)  # the future is one bucket


def test_t5_reads_the_heads_column() -> None:
    table = np.arange(64.0).reshape(32, 2)
    found = bias(t5(table)).table([10], [9, 11])
    np.testing.assert_array_equal(found[:, 0], [[table[1, 0], table[17, 0]], [table[1, 1], table[17, 1]]])


@given(seed=st.integers(0, 10_000), causal=st.booleans())
@settings(max_examples=30, deadline=None)
def test_fire_is_its_network_of_the_normalised_distance(seed: int, causal: bool) -> None:
    draw = np.random.default_rng(seed)
    w, b, out, out_b = draw.standard_normal(5), draw.standard_normal(5), draw.standard_normal((2, 5)), np.ones(2)
    encoding = fire(w, b, out, out_b, c=0.3, threshold=20.0, causal=causal)
    i, j = draw.integers(0, 100, 2)
    reach = max(20.0, i) if causal else max(20.0, i, j)
    x = math.log(0.3 * abs(i - j) + 1) / math.log(0.3 * reach + 1)
    expected = out @ np.maximum(w * x + b, 0) + out_b
    np.testing.assert_allclose(bias(encoding).table([i], [j])[:, 0, 0], expected, rtol=1e-12)


def test_fire_before_training_is_its_drawn_network() -> None:
    at = np.arange(0, 900, 37)
    drawn = fire(*fire_network(3, 32, seed=5), c=0.1, threshold=512.0)
    for made in (fire_init(3, seed=5), fire(*fire_network(3, seed=5))):  # the sizes and constants of the paper
        np.testing.assert_array_equal(bias(made).table(at, at), bias(drawn).table(at, at))
        assert (made.parameters["hidden"], made.parameters["c"], made.parameters["threshold"]) == (32, 0.1, 512.0)
    assert np.abs(bias(fire_init(3, seed=6)).table(at, at) - bias(drawn).table(at, at)).max() > 1e-3
    np.testing.assert_array_equal(
        bias(fire_init(3)).table(at, at), bias(fire(*fire_network(3, seed=0))).table(at, at)
    )
    np.testing.assert_array_equal(fire_network(1, 1)[2], fire_network(1, 1, seed=0)[2])


def test_fire_depends_on_the_query_beyond_its_threshold_only() -> None:
    b = bias(fire_init(2, threshold=64.0))
    assert not b.toeplitz
    np.testing.assert_allclose(b.table([60], [50]), b.table([20], [10]))
    assert np.abs(b.table([600], [590]) - b.table([20], [10])).max() > 1e-4


def test_fire_without_a_mask_is_the_causal_one_for_the_past() -> None:
    at = np.arange(0, 900, 50)
    causal, both = (bias(fire_init(2, threshold=64.0, causal=c)).table(at, at) for c in (True, False))
    past = np.tri(len(at), dtype=bool)
    np.testing.assert_array_equal(causal[:, past], both[:, past])
    np.testing.assert_allclose(both, both.swapaxes(1, 2))  # and the future mirrors it


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: alibi(0), "one head"),
        (lambda: alibi(3, slopes=[1.0]), "1 slopes.* 3 "),
        (lambda: alibi(2, slope_dtype="float8"), "precision"),  # type: ignore[arg-type]
        (lambda: t5(np.zeros(4)), r"\(buckets, heads\)"),
        (lambda: t5(np.full((32, 2), 1e300)), "computed"),
        (lambda: t5_bucket(0, buckets=3), "too few"),
        (lambda: t5_bucket(0, max_distance=8), "exceed"),
        (lambda: kerple(2, kernel="exp"), "kernel"),  # type: ignore[arg-type]
        (lambda: kerple(2, r1=-1.0), "positive"),
        (lambda: kerple(2, r1=[1.0, 2.0, 3.0]), "3 .*r1.* 2 "),
        (lambda: kerple(2, kernel="power", r2=3.0), "at most 2"),
        (lambda: fire([1.0], [1.0, 2.0], [[1.0]], [0.0]), "fit together"),
        (lambda: fire_init(2, c=0.0), "c > 0"),
        (lambda: fire_init(2, threshold=0.0), "threshold > 0"),
        (lambda: t5_init(2, std=-0.1), "std"),
        (lambda: t5_init(2, std=math.inf), "std"),
        (lambda: t5_init(2, std=math.nan), "std"),
        (lambda: t5_init(0), "one head"),
        (lambda: fire_network(0), "one head"),
        (lambda: fire_network(2, 0), "hidden"),
    ],
)
def test_nonsense_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        build()


# ------------------------------------------------------------------ T5
def bucket_of(relative: int, bidirectional: bool, buckets: int, max_distance: int) -> int:
    """T5's rule in words of integers: exact up to e, then as many borders as the distance has passed."""
    per_side = buckets // 2 if bidirectional else buckets
    exact = per_side // 2
    side = per_side if bidirectional and relative > 0 else 0
    distance = abs(relative) if bidirectional else max(-relative, 0)
    if distance < exact:
        return side + distance
    steps = per_side - exact
    # bucket e + s begins where (distance/e)^steps >= (max_distance/e)^s
    passed = sum(
        distance**steps * exact**s >= max_distance**s * exact**steps  # whole numbers: no rounding
        for s in range(1, steps + 1)
    )
    return side + min(exact + passed, per_side - 1)


@pytest.mark.parametrize(
    ("bidirectional", "buckets", "max_distance"),
    [(True, 32, 100), (False, 32, 100), (True, 4, 5), (False, 2, 3), (True, 5, 3), (False, 9, 7), (True, 20, 61)],
)
def test_buckets_are_those_of_whole_number_arithmetic(bidirectional: bool, buckets: int, max_distance: int) -> None:
    """At distances that no border falls on, which float32 would decide."""
    relative = np.arange(-3 * max_distance, 3 * max_distance + 1)
    found = t5_bucket(relative, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)
    expected = [bucket_of(int(r), bidirectional, buckets, max_distance) for r in relative]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int64
    assert found.max() < buckets


def test_buckets_of_distances_that_are_not_whole_are_those_towards_zero() -> None:
    np.testing.assert_array_equal(t5_bucket([-1.9, -0.5, 0.5, 1.9]), t5_bucket([-1, 0, 0, 1]))


def test_the_fewest_buckets() -> None:
    assert t5_bucket(-1, buckets=4).item() == 1
    assert t5_bucket(-1, buckets=2, bidirectional=False).item() == 1
    assert t5_bucket(0, max_distance=9).item() == 0  # eight are exact
    assert t5_bucket(0, max_distance=17, bidirectional=False).item() == 0
    for wrong in (
        {"buckets": 3},
        {"buckets": 0},
        {"buckets": 1, "bidirectional": False},
        {"max_distance": 8},
        {"max_distance": 16, "bidirectional": False},
    ):
        with pytest.raises(BadEncoding):
            t5_bucket(0, **wrong)  # type: ignore[arg-type]


def test_t5_before_training_is_its_drawn_table() -> None:
    at = np.arange(0, 300, 7)
    for made, std, seed in ((t5_init(3), 0.05, 0), (t5_init(3, std=2.0, seed=4), 2.0, 4)):
        drawn = std * np.random.default_rng(seed).standard_normal((32, 3))
        np.testing.assert_array_equal(bias(made).table(at, at), bias(t5(drawn)).table(at, at))
        assert dict(made.parameters) == {
            "buckets": 32,
            "heads": 3,
            "bidirectional": True,
            "max_distance": 128,
            "std": std,
            "seed": seed,
        }
    assert not bias(t5_init(1, std=0.0)).table(at, at).any()
    for buckets in (0, -5):
        with pytest.raises(BadEncoding):
            t5_init(1, buckets=buckets)


def test_a_t5_table_holds_numbers_that_can_be_computed_with() -> None:
    for wrong in (np.nan, np.inf, 1e60, -1e60):
        with pytest.raises(BadEncoding):
            t5(np.full((32, 1), wrong))
    assert bias(t5(np.zeros((32, 0)))).table([0], [1]).shape == (0, 1, 1)
    one_way = bias(t5(np.arange(64.0).reshape(32, 2), bidirectional=False, max_distance=40))
    at = np.arange(60)
    bucket = t5_bucket(at - at[:, None], bidirectional=False, max_distance=40)
    np.testing.assert_array_equal(one_way.table(at, at), [2 * bucket, 2 * bucket + 1])
    assert one_way.table(at, at).flags.c_contiguous


# ------------------------------------------------------------------ ALiBi
def published_slopes(heads: int) -> list[float]:
    """As the paper's code has it: a geometric row, and every other one of the row twice as long."""

    def row(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return row(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return row(closest) + published_slopes(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 12, 16, 23])
def test_slopes_are_those_of_the_papers_code(heads: int) -> None:
    np.testing.assert_allclose(alibi_slopes(heads), published_slopes(heads), rtol=1e-12)
    np.testing.assert_allclose(alibi_slopes(heads, 4.0), np.sqrt(published_slopes(heads)), rtol=1e-12)
    np.testing.assert_allclose(alibi(heads, max_bias=4.0).parameters["slopes"], np.sqrt(published_slopes(heads)))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_rounded_bias_rounds_slopes_positions_and_products(symmetric: bool, kind: str) -> None:
    rounding = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[kind]

    def low(x: object) -> np.ndarray:
        return np.asarray(x).astype(np.float32).astype(rounding).astype(np.float64)

    encoding = alibi(3, symmetric=symmetric, scale=0.3, slopes=[0.7, 0.3, 1 / 3], slope_dtype=kind, table_dtype=kind)  # type: ignore[arg-type]
    i, j = np.array([0, 5, 259, 1001]), np.array([3, 258, 777])
    found = bias(encoding).table(i, j)
    for h, slope in enumerate(low([0.7, 0.3, 1 / 3])):
        expected = low(slope * low(j)) - low(slope * low(i))[:, None]
        np.testing.assert_allclose(found[h], 0.3 * (-np.abs(expected) if symmetric else expected), rtol=1e-14)
    np.testing.assert_allclose(encoding.parameters["slopes"], low([0.7, 0.3, 1 / 3]), rtol=0)
    assert not bias(encoding).toeplitz
    assert len(encoding.notes) == 1


def test_an_exact_alibi_states_what_it_was_made_of() -> None:
    plain, own = alibi(2), alibi(2, slopes=[0.5, 0.25])
    assert bias(plain).toeplitz
    assert plain.notes == ()
    assert dict(plain.parameters) == {
        "heads": 2,
        "symmetric": True,
        "slopes": [2**-4, 2**-8],
        "max_bias": 8.0,
        "scale": 1.0,
        "slope_dtype": "float64",
        "table_dtype": "float64",
    }
    assert "max_bias" not in own.parameters
    given = np.array([0.5, 0.25])
    kept = alibi(2, slopes=given)
    given[:] = 9.0  # the caller's array is not ours
    np.testing.assert_array_equal(bias(kept).by_offset([1]), [[-0.5], [-0.25]])


# ------------------------------------------------------------------ Kerple
def test_kerple_without_numbers_is_the_logarithm_of_one_plus_the_distance() -> None:
    t = np.array([-3.0, 0.0, 1.0, 20.0])
    np.testing.assert_allclose(bias(kerple(2)).by_offset(t), [-np.log1p(np.abs(t))] * 2)
    np.testing.assert_allclose(bias(kerple(2, kernel="power")).by_offset(t), [-np.abs(t)] * 2)
    assert dict(kerple(2).parameters) == {"heads": 2, "kernel": "log", "r1": [1.0, 1.0], "r2": [1.0, 1.0]}


def test_kerples_numbers_are_one_or_one_per_head() -> None:
    for good in (2.0, [2.0], [2.0, 2.0, 2.0]):
        assert kerple(3, r1=good, r2=good).parameters["r1"] == [2.0] * 3
    assert kerple(1, kernel="power", r2=2.0).parameters["r2"] == [2.0]
    assert kerple(1, kernel="log", r2=3.0).parameters["r2"] == [3.0]  # the bound is the power's
    for wrong in (0.0, -1.0, np.inf, np.nan, [1.0, 2.0], [[1.0, 1.0, 1.0]]):
        for name in ("r1", "r2"):
            with pytest.raises(BadEncoding):
                kerple(3, **{name: wrong})  # type: ignore[arg-type]
    with pytest.raises(BadEncoding):
        kerple(3, kernel="power", r2=[1.0, 1.0, 2.1])
    with pytest.raises(BadEncoding):
        kerple(0)


# ------------------------------------------------------------------ FIRE
def test_fires_network_is_drawn_by_its_fan_in() -> None:
    heads, hidden = 40, 400
    w, b, out, out_b = fire_network(heads, hidden, seed=3)
    assert (w.shape, b.shape, out.shape, out_b.shape) == ((hidden,), (hidden,), (heads, hidden), (heads,))
    for drawn, bound in ((w, 1.0), (b, 1.0), (out, 1 / 20), (out_b, 1 / 20)):
        assert 0.85 * bound < drawn.max() <= bound
        assert -bound <= drawn.min() < -0.85 * bound
    assert not np.array_equal(w, b)


def test_fire_takes_small_constants_and_states_them() -> None:
    network = fire_network(2, 3, seed=1)
    encoding = fire(*network, c=0.01, threshold=0.5, causal=False)
    assert dict(encoding.parameters) == {"heads": 2, "hidden": 3, "c": 0.01, "threshold": 0.5, "causal": False}
    assert fire(*network).parameters["causal"] is True
    assert fire_init(2, seed=7).parameters["seed"] == 7
    for wrong in ({"c": -0.1}, {"c": np.nan}, {"threshold": -1.0}, {"threshold": np.nan}):
        with pytest.raises(BadEncoding):
            fire(*network, **wrong)
    w, b, out, out_b = network
    for parts in ((w[:2], b, out, out_b), (w, b[:2], out, out_b), (w, b, out[:, :2], out_b), (w, b, out, out_b[:1])):
        with pytest.raises(BadEncoding):
            fire(*parts)


def test_drawn_biases_foresee_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "toposcope.encodings.bias_t5"
    asked, peak = foreseen(monkeypatch, module, lambda: t5_init(3, buckets=30_000, max_distance=10**6))
    assert 0.98 * peak < asked < 1.1 * peak
    module = "toposcope.encodings.bias_fire"
    for heads in (1, 8):
        asked, peak = foreseen(monkeypatch, module, lambda heads=heads: fire_network(heads, 30_000))  # type: ignore[misc]
        assert peak < asked < 2.1 * peak
