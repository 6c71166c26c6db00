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


def test_frequencies_are_a_geometric_row() -> None:
    np.testing.assert_allclose(plain_frequencies(8, 1e4), [1, 0.1, 0.01, 0.001], rtol=1e-14)
    np.testing.assert_allclose(plain_frequencies(3, 8.0), [1, 8 ** (-2 / 3)], rtol=1e-14)
    np.testing.assert_array_equal(scaled(8, 1e4, Scaling()).frequencies_at(77), plain_frequencies(8, 1e4))
    assert scaled(8, 1e4, Scaling()).attention_factor == 1.0


def test_every_scaling_by_hand() -> None:
    """Four pairs at 1, 1/10, 1/100, 1/1000, stretched fourfold."""
    plain = np.array([1, 0.1, 0.01, 0.001])
    linear = scaled(8, 1e4, Scaling("linear", 4.0))
    np.testing.assert_allclose(linear.frequencies_at(None), plain / 4)
    ntk = scaled(8, 1e4, Scaling("ntk", 4.0)).frequencies_at(None)
    np.testing.assert_allclose(ntk, plain / 4 ** (np.arange(4) / 3))
    dynamic = scaled(8, 1e4, Scaling("dynamic", 4.0, original_context=10))
    np.testing.assert_allclose(dynamic.frequencies_at(25), plain / 7 ** (np.arange(4) / 3))  # 4 * 2.5 - 3
    assert dynamic.attention_factor == linear.attention_factor == 1.0
    for factor in (None, 4.0):
        proportional = scaled(8, 1e4, Scaling("proportional", factor)).frequencies_at(None)
        np.testing.assert_allclose(proportional, plain / (factor or 1))


def test_yarns_ramp_by_hand() -> None:
    """Pair f turns L / (2 pi 10^f) times, so m turns are made by pair log10(L / (2 pi m))."""
    plain, original = np.array([1, 0.1, 0.01, 0.001]), 1000
    for fast, slow, truncate in ((32.0, 1.0, False), (32.0, 1.0, True), (5.0, 0.3, False), (5.0, 0.3, True)):
        first, last = (math.log10(original / (2 * math.pi * turns)) for turns in (fast, slow))
        if truncate:
            first, last = math.floor(first), math.ceil(last)
        ramp = np.clip((np.arange(4) - first) / (last - first), 0, 1)
        scaling = Scaling("yarn", 4.0, original_context=original, beta_fast=fast, beta_slow=slow, truncate=truncate)
        found = scaled(8, 1e4, scaling).frequencies_at(None)
        np.testing.assert_allclose(found, plain / 4 * ramp + plain * (1 - ramp), rtol=1e-12)
        assert 0 <= first < last < 4
    assert Scaling() == Scaling(
        beta_fast=32.0, beta_slow=1.0, truncate=True, low_freq_factor=1.0, high_freq_factor=4.0
    )


def test_yarns_ramp_stays_among_the_pairs() -> None:
    """A context so long that all pairs turn often: the ramp would begin and end beyond the last channel."""
    plain = plain_frequencies(8, 1e4)
    long = scaled(8, 1e4, Scaling("yarn", 4.0, original_context=10**9, truncate=False)).frequencies_at(None)
    np.testing.assert_array_equal(long, plain)
    middle = scaled(16, 1e4, Scaling("yarn", 4.0, original_context=10**7, truncate=False)).frequencies_at(None)
    pair = 16 * math.log(10**7 / (2 * math.pi * 32)) / (2 * math.log(1e4))
    end = min(16 * math.log(10**7 / (2 * math.pi)) / (2 * math.log(1e4)), 15)
    ramp = np.clip((np.arange(8) - pair) / (end - pair), 0, 1)
    kept = plain_frequencies(16, 1e4)
    np.testing.assert_allclose(middle, kept / 4 * ramp + kept * (1 - ramp), rtol=1e-12)


def test_yarns_size_takes_both_weights_or_neither() -> None:
    def size(**given: float) -> float:
        return scaled(8, 1e4, Scaling("yarn", 8.0, original_context=64, **given)).attention_factor  # type: ignore[arg-type]

    def weighed(weight: float) -> float:
        return 0.1 * weight * math.log(8) + 1

    assert size(mscale=0.7, mscale_all_dim=0.4) == pytest.approx(weighed(0.7) / weighed(0.4))
    assert size(mscale=0.7) == size(mscale_all_dim=0.4) == size() == pytest.approx(weighed(1.0))
    assert size(attention_factor=0.5, mscale=0.7, mscale_all_dim=0.4) == 0.5


def test_llama3s_ramp_by_hand() -> None:
    """Turns within the context: few are divided, many are kept, between the bounds a straight line."""
    for low, high in ((1.0, 4.0), (2.0, 20.0)):
        scaling = Scaling("llama3", 8.0, original_context=100, low_freq_factor=low, high_freq_factor=high)
        plain = plain_frequencies(8, 1e4)
        turns = 100 * plain / (2 * math.pi)
        part = np.clip((turns - low) / (high - low), 0, 1)
        np.testing.assert_allclose(
            scaled(8, 1e4, scaling).frequencies_at(None), plain * (part + (1 - part) / 8), rtol=1e-12
        )
    for low, high in ((0.0, 4.0), (-1.0, 4.0), (4.0, 4.0), (5.0, 4.0)):
        with pytest.raises(BadEncoding):
            scaled(8, 1e4, Scaling("llama3", 8.0, original_context=100, low_freq_factor=low, high_freq_factor=high))
    small = Scaling("llama3", 8.0, original_context=100, low_freq_factor=0.1, high_freq_factor=0.2)
    assert scaled(8, 1e4, small).frequencies_at(None)[0] == 1.0


def test_longropes_size_needs_a_context_of_two() -> None:
    lists = {"short_factor": (1.0, 1.0), "long_factor": (2.0, 2.0)}

    def size(factor: float | None, original: int, context: int | None = None) -> float:
        scaling = Scaling("longrope", factor, original_context=original, context=context, **lists)  # type: ignore[arg-type]
        return scaled(4, 1e4, scaling).attention_factor

    assert size(4.0, 2) == pytest.approx(math.sqrt(1 + math.log(4) / math.log(2)))
    assert size(1.5, 8) == pytest.approx(math.sqrt(1 + math.log(1.5) / math.log(8)))
    assert size(None, 8, 24) == pytest.approx(math.sqrt(1 + math.log(3) / math.log(8)))
    assert size(1.0, 1) == size(0.5, 1) == size(0.5, 8) == 1.0
    for factor, context in ((4.0, None), (None, 8)):
        with pytest.raises(BadEncoding):
            size(factor, 1, context)


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn", "llama3", "proportional"])
def test_factors_and_contexts_are_checked(kind: str) -> None:
    for good in (0.5, 1.0, 40.0):
        assert scaled(8, 1e4, Scaling(kind, good, original_context=50)).frequencies_at(None).shape == (4,)
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(BadEncoding):
            scaled(8, 1e4, Scaling(kind, wrong, original_context=50))
    if kind not in ("linear", "ntk", "proportional"):
        for length in (None, 0, -5):
            with pytest.raises(BadEncoding):
                scaled(8, 1e4, Scaling(kind, 2.0, original_context=length))
        one = scaled(8, 1e4, Scaling(kind, 2.0, original_context=1)).frequencies_at(None)
        assert np.isfinite(one).all()
        claimed = scaled(8, 1e4, Scaling(kind, 2.0, context=50)).frequencies_at(
            60
        )  # what the model claims, failing that
        np.testing.assert_array_equal(
            claimed, scaled(8, 1e4, Scaling(kind, 2.0, original_context=50)).frequencies_at(60)
        )


def test_a_lone_pair_is_the_only_one_that_is_not_stretched() -> None:
    assert scaled(2, 1e4, Scaling("ntk", 8.0)).frequencies_at(None).tolist() == [1.0]
    np.testing.assert_allclose(scaled(4, 1e4, Scaling("ntk", 8.0)).frequencies_at(None), [1.0, 0.01 / 8])
    with pytest.raises(BadEncoding):
        scaled(4, 1e4, Scaling("nothing"))
