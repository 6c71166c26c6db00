"""Vectors added to the input: at any position, from the right row, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.foreseeing import foreseen
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.encodings import Encoding, learned, learned_init, random, sinusoidal
from toposcope.encodings.record import InputTable


def table(encoding: Encoding) -> InputTable:
    assert encoding.input is not None
    return encoding.input


@given(
    width=st.integers(1, 40).map(lambda n: 2 * n),
    layout=st.sampled_from(["interleaved", "half"]),
    base=st.floats(2.0, 1e6),
    seed=st.integers(0, 1000),
)
@settings(deadline=None)
def test_products_of_sinusoids_depend_on_the_distance_only(width: int, layout: str, base: float, seed: int) -> None:
    vectors = table(sinusoidal(width, layout=layout, base=base)).vectors  # type: ignore[arg-type]
    at = np.random.default_rng(seed).integers(0, 5000, 9)
    near, far = vectors(at), vectors(at + 12_345)
    np.testing.assert_allclose(near @ near.T, far @ far.T, atol=1e-8)
    np.testing.assert_allclose((near**2).sum(axis=1), width / 2, rtol=1e-12)
    np.testing.assert_array_equal(near, vectors(np.arange(5000))[at])


def test_the_layouts_differ_in_their_slowest_frequency() -> None:
    """Interleaved ends one step before 1/base, half-split ends at it."""
    at = np.array([1.0])
    interleaved = table(sinusoidal(8)).vectors(at)[0]
    half = table(sinusoidal(8, layout="half")).vectors(at)[0]
    assert np.arcsin(interleaved[6]) == pytest.approx(10000 ** -(3 / 4))
    assert np.arcsin(half[3]) == pytest.approx(1 / 10000)
    same = table(sinusoidal(8, layout="half", denominator=4)).vectors(at)[0]
    np.testing.assert_allclose(same, np.concatenate([interleaved[::2], interleaved[1::2]]))


def test_offset_and_scale() -> None:
    shifted = table(sinusoidal(6, offset=2, scale=3.0)).vectors([0, 5])
    np.testing.assert_allclose(shifted, 3 * table(sinusoidal(6)).vectors([2, 7]))


def test_an_odd_width_ends_with_a_sine() -> None:
    vector = table(sinusoidal(5)).vectors([3])[0]
    assert vector[4] == pytest.approx(np.sin(3 * 10000 ** -(4 / 5)))


def test_a_learned_table_is_read_at_its_offset_in_its_own_precision() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(6, 4).astype(ml_dtypes.bfloat16)
    encoding = learned(rows, offset=2)
    assert table(encoding).length == 4
    found = table(encoding).vectors([3, 0])
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, rows[[5, 2]].astype(np.float64))


def test_positions_beyond_a_table_or_between_its_rows_are_refused() -> None:
    vectors = table(learned(np.zeros((6, 4)), offset=2)).vectors
    with pytest.raises(BadValue, match="position 4"):
        vectors([0, 4])
    with pytest.raises(BadValue, match="position -1"):
        vectors([-1])
    with pytest.raises(BadValue, match=r"1\.5"):
        vectors([0, 1.5])


@pytest.mark.parametrize("make", [learned_init, random])
def test_draws_repeat_with_their_seed(make: object) -> None:
    build = make
    assert callable(build)
    first, again, other = (table(build(32, 400, std=0.5, seed=seed)).vectors(np.arange(400)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    assert first.std() == pytest.approx(0.5, rel=0.05)


def test_random_vectors_are_as_long_as_sinusoids() -> None:
    drawn, waves = (table(e).vectors(np.arange(500)) for e in (random(64, 500), sinusoidal(64)))
    assert (drawn**2).mean() == pytest.approx((waves**2).mean(), rel=0.05)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sinusoidal(7, layout="half"), "even width"),
        (lambda: sinusoidal(0), "positive"),
        (lambda: sinusoidal(8, base=1.0), "base"),
        (lambda: sinusoidal(8, denominator=-1.0), "denominator"),
        (lambda: sinusoidal(8, layout="other"), "layout"),  # type: ignore[arg-type]
        (lambda: learned(np.zeros(5)), r"\(positions, width\)"),
        (lambda: learned(np.zeros((2, 3)), offset=2), "no position"),
        (lambda: learned(np.zeros((2, 3)), offset=-1), "no position"),
        (lambda: learned_init(4, 0), "0 x 4"),
        (lambda: random(4, 3, std=-1.0), "std"),
    ],
)
def test_nonsense_is_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(BadEncoding, match=message):
        build()


@pytest.mark.parametrize("build", [learned_init, random])
def test_one_position_of_one_channel_is_enough_and_none_is_not(build: Callable[[int, int], Encoding]) -> None:
    assert table(build(1, 1)).vectors([0]).shape == (1, 1)
    for width, length in ((0, 1), (1, 0), (-1, 5), (5, -1)):
        with pytest.raises(BadEncoding, match=f"{length} x {width}"):
            build(width, length)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_a_sinusoid_is_its_formula(layout: str) -> None:
    """With the paper's base, no offset and unit size unless said otherwise."""
    width, at = 12, np.array([-3.0, 0.0, 0.5, 1.0, 77.0])
    encoding = sinusoidal(width, layout=layout)  # type: ignore[arg-type]
    found = table(encoding).vectors(at)
    for f in range(width // 2):
        angle = at / 10000 ** (f / (6 if layout == "interleaved" else 5))
        sine, cosine = (2 * f, 2 * f + 1) if layout == "interleaved" else (f, 6 + f)
        np.testing.assert_allclose(found[:, sine], np.sin(angle), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(found[:, cosine], np.cos(angle), rtol=1e-12, atol=1e-15)
    assert dict(encoding.parameters) == {
        "width": 12,
        "layout": layout,
        "base": 10000.0,
        "denominator": 6.0 if layout == "interleaved" else 5.0,
        "offset": 0,
        "scale": 1.0,
    }


def test_the_narrowest_sinusoids_turn_by_one_radian_a_step() -> None:
    np.testing.assert_allclose(table(sinusoidal(1)).vectors([3]), [[np.sin(3)]])
    for layout in ("interleaved", "half"):
        np.testing.assert_allclose(
            table(sinusoidal(2, layout=layout)).vectors([3]),  # type: ignore[arg-type]
            [[np.sin(3), np.cos(3)]],
        )
    one_pair = table(sinusoidal(2, denominator=0.0)).vectors([3])  # no exponent is divided by it
    np.testing.assert_allclose(one_pair, [[np.sin(3), np.cos(3)]])


def test_exponents_need_something_to_be_divided_by() -> None:
    slow = table(sinusoidal(4, base=1.5, denominator=0.5)).vectors([1])[0]
    assert np.arcsin(slow[2]) == pytest.approx(1.5**-2)
    for width, denominator in ((3, 0.0), (8, 0.0), (8, -0.5), (2, -1.0)):
        with pytest.raises(BadEncoding):
            sinusoidal(width, denominator=denominator)
    for base in (1.0, 0.5, -2.0, np.inf, np.nan):
        with pytest.raises(BadEncoding):
            sinusoidal(8, base=base)


def test_a_learned_table_may_hold_one_position_and_numbers_that_can_be_computed_with() -> None:
    rows = np.arange(12.0).reshape(3, 4)
    whole, last = learned(rows), learned(rows, offset=2)
    np.testing.assert_array_equal(table(whole).vectors([0, 2]), rows[[0, 2]])
    np.testing.assert_array_equal(table(last).vectors([0]), rows[[2]])
    assert dict(whole.parameters) == {"length": 3, "width": 4, "offset": 0}
    assert dict(last.parameters) == {"length": 1, "width": 4, "offset": 2}
    assert table(learned(np.zeros((3, 0)))).vectors([1]).shape == (1, 0)
    for wrong in (np.nan, np.inf, -np.inf, 1e60, -1e60, 1e-60):
        with pytest.raises(BadEncoding):
            learned(np.array([[wrong], [0.0]]))
    for shape in ((0, 4), (4,), (2, 2, 2)):
        with pytest.raises(BadEncoding):
            learned(np.zeros(shape))


def test_draws_are_normal_with_the_spread_they_state() -> None:
    for made, std in (
        (learned_init(40, 500), 0.02),
        (random(40, 500), np.sqrt(0.5)),
        (random(40, 500, std=2.0), 2.0),
    ):
        drawn = table(made).vectors(np.arange(500))
        np.testing.assert_array_equal(drawn, std * np.random.default_rng(0).standard_normal((500, 40)))
        assert dict(made.parameters) == {"length": 500, "width": 40, "std": pytest.approx(std), "seed": 0}
    assert not table(random(3, 4, std=0.0)).vectors([0, 3]).any()
    for make in (learned_init, random):
        for wrong in (np.nan, np.inf, -1e-9):
            with pytest.raises(BadEncoding):
                make(3, 4, std=wrong)


def test_drawn_tables_foresee_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (learned_init, random):
        asked, peak = foreseen(monkeypatch, "toposcope.encodings.absolute", lambda make=make: make(30, 4000))  # type: ignore[misc]
        assert peak < asked < 2.1 * peak
