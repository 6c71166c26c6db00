"""Biases on the logits: their formulas, their symmetry, and which of them are Toeplitz."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
        (lambda: alibi(0), "at least one head"),
        (lambda: alibi(3, slopes=[1.0]), "1 slopes given for 3 heads"),
        (lambda: alibi(2, slope_dtype="float8"), "precision"),  # type: ignore[arg-type]
        (lambda: t5(np.zeros(4)), r"\(buckets, heads\)"),
        (lambda: t5(np.full((32, 2), 1e300)), "cannot be computed"),
        (lambda: t5_bucket(0, buckets=3), "too few"),
        (lambda: t5_bucket(0, max_distance=8), "exceed"),
        (lambda: kerple(2, kernel="exp"), "unknown Kerple kernel"),  # type: ignore[arg-type]
        (lambda: kerple(2, r1=-1.0), "positive"),
        (lambda: kerple(2, r1=[1.0, 2.0, 3.0]), "3 values of r1 given for 2 heads"),
        (lambda: kerple(2, kernel="power", r2=3.0), "at most 2"),
        (lambda: fire([1.0], [1.0, 2.0], [[1.0]], [0.0]), "does not fit together"),
        (lambda: fire_init(2, c=0.0), "c > 0"),
        (lambda: fire_init(2, threshold=0.0), "threshold > 0"),
        (lambda: t5_init(2, std=-0.1), "std"),
        (lambda: t5_init(2, std=math.inf), "std"),
        (lambda: t5_init(2, std=math.nan), "std"),
        (lambda: t5_init(0), "at least one head"),
        (lambda: fire_network(0), "at least one head"),
        (lambda: fire_network(2, 0), "one hidden unit"),
    ],
)
def test_nonsense_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(BadEncoding, match=message):
        build()
