"""Vectors added to the input: at any position, from the right row, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    with pytest.raises(BadValue, match="position 4 has no vector"):
        vectors([0, 4])
    with pytest.raises(BadValue, match="position -1 has no vector"):
        vectors([-1])
    with pytest.raises(BadValue, match=r"1\.5 is not whole"):
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
        (lambda: sinusoidal(8, base=1.0), "greater than 1"),
        (lambda: sinusoidal(8, denominator=-1.0), "denominator"),
        (lambda: sinusoidal(8, layout="other"), "layout"),  # type: ignore[arg-type]
        (lambda: learned(np.zeros(5)), r"\(positions, width\)"),
        (lambda: learned(np.zeros((2, 3)), offset=2), "no position"),
        (lambda: learned(np.zeros((2, 3)), offset=-1), "no position"),
        (lambda: learned_init(4, 0), "positions and width"),
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
        with pytest.raises(BadEncoding, match="positions and width"):
            build(width, length)
