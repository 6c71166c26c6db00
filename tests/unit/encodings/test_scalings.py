"""What each scaling promises, as properties of its frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadEncoding
from toposcope.encodings.scalings import Scaling, plain_frequencies, scaled

WIDTHS = st.integers(2, 64).map(lambda pairs: 2 * pairs)
BASES = st.floats(100.0, 1e7)
FACTORS = st.floats(1.0, 100.0)


@given(width=WIDTHS, base=BASES, factor=FACTORS)
@settings(deadline=None)
def test_ntk_keeps_the_fastest_pair_and_divides_the_slowest(width: int, base: float, factor: float) -> None:
    plain = plain_frequencies(width, base)
    stretched = scaled(width, base, Scaling("ntk", factor)).frequencies_at(None)
    assert stretched[0] == plain[0] == 1.0
    assert stretched[-1] == pytest.approx(plain[-1] / factor, rel=1e-9)


def test_a_lone_pair_has_nothing_to_stretch_by_its_base() -> None:
    np.testing.assert_array_equal(scaled(2, 1e4, Scaling("ntk", 8.0)).frequencies_at(None), [1.0])
    np.testing.assert_array_equal(
        scaled(2, 1e4, Scaling("dynamic", 8.0, original_context=4)).frequencies_at(100), [1.0]
    )


@given(
    width=WIDTHS,
    base=BASES,
    factor=FACTORS,
    original=st.integers(16, 1 << 16),
    kind=st.sampled_from(["yarn", "llama3"]),
)
@settings(deadline=None)
def test_yarn_and_llama3_keep_fast_pairs_and_divide_slow_ones(
    width: int, base: float, factor: float, original: int, kind: str
) -> None:
    plain = plain_frequencies(width, base)
    result = scaled(width, base, Scaling(kind, factor, original_context=original, truncate=False))
    stretched = result.frequencies_at(None)
    turns = original * plain / (2 * math.pi)
    many, few = (32.0, 1.0) if kind == "yarn" else (4.0, 1.0)
    interior = (turns > many * 1.0001) & (np.arange(len(plain)) > 0)
    if kind == "llama3" or turns[0] > many:  # a context shorter than that has no fast pairs
        np.testing.assert_allclose(stretched[interior], plain[interior], rtol=1e-9)
        slow = turns < few * 0.9999
        if kind == "llama3" or slow.any():
            np.testing.assert_allclose(stretched[slow], plain[slow] / factor, rtol=1e-6)
    assert (stretched <= plain * (1 + 1e-12)).all()
    assert (stretched >= plain / factor * (1 - 1e-12)).all()


@given(width=WIDTHS, base=BASES, factor=st.floats(1.5, 100.0), original=st.integers(8, 10_000))
@settings(deadline=None)
def test_dynamic_leaves_short_texts_alone_and_stretches_longer_ones(
    width: int, base: float, factor: float, original: int
) -> None:
    result = scaled(width, base, Scaling("dynamic", factor, original_context=original))
    plain = plain_frequencies(width, base)
    for context in (None, 1, original):
        np.testing.assert_allclose(result.frequencies_at(context), plain, rtol=1e-12)
    twice = result.frequencies_at(2 * original)
    assert (twice[1:] < plain[1:]).all()
    assert twice[-1] == pytest.approx(plain[-1] / (factor + 1), rel=1e-9)


def test_longrope_changes_lists_just_beyond_the_original_context() -> None:
    scaling = Scaling(
        "longrope", None, original_context=100, context=800, short_factor=(1.0, 2.0), long_factor=(4.0, 8.0)
    )
    result = scaled(4, 1e4, scaling)
    np.testing.assert_allclose(result.frequencies_at(None), [1.0, 0.005])
    np.testing.assert_allclose(result.frequencies_at(100), [1.0, 0.005])
    np.testing.assert_allclose(result.frequencies_at(101), [0.25, 0.00125])
    assert result.attention_factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(100)))


def test_an_attention_factor_that_is_given_is_taken() -> None:
    assert scaled(8, 1e4, Scaling("linear", 2.0, attention_factor=1.25)).attention_factor == 1.25
    yarn = Scaling("yarn", 4.0, original_context=64)
    assert scaled(8, 1e4, yarn).attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_with_no_room_for_a_ramp_takes_a_step() -> None:
    """A context so short that no pair turns even once: the fastest pair is kept, all others are divided."""
    scaling = Scaling("yarn", 8.0, original_context=2)
    plain, stretched = plain_frequencies(8, 1e4), scaled(8, 1e4, scaling).frequencies_at(None)
    np.testing.assert_allclose(stretched, plain / [1, 8, 8, 8], rtol=1e-12)
    narrow = Scaling("yarn", 8.0, original_context=500, beta_fast=10.0, beta_slow=10.0, truncate=False)
    assert 1 < 500 / (2 * math.pi * 10) < 10  # ten turns are made between pair 0 and pair 1, base^(2 f / d) = 10
    np.testing.assert_allclose(scaled(8, 1e4, narrow).frequencies_at(None), plain / [1, 8, 8, 8], rtol=1e-12)


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_yarn_that_does_not_stretch_does_not_sharpen(factor: float) -> None:
    assert scaled(8, 1e4, Scaling("yarn", factor, original_context=64)).attention_factor == 1.0
    longer = scaled(8, 1e4, Scaling("yarn", 2 * math.e, original_context=64)).attention_factor
    assert longer == pytest.approx(1 + 0.1 * (1 + math.log(2)))


@pytest.mark.parametrize("wrong", [0.0, -0.5, math.inf, math.nan])
def test_divisors_of_longrope_are_positive(wrong: float) -> None:
    good, bad = (1.0, 1.0), (1.0, wrong)
    for short, long in ((good, bad), (bad, good)):
        scaling = Scaling("longrope", 4.0, original_context=64, short_factor=short, long_factor=long)
        with pytest.raises(BadEncoding, match="positive numbers"):
            scaled(4, 1e4, scaling)
