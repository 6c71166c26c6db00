"""Intervals of means against SciPy's, and of shares against draws."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from toposcope.core.statistics import from_error, half_width, of_shares, plus_minus, share_interval, told_from_zero


@pytest.mark.parametrize("count", [2, 3, 4, 30])
def test_students_interval(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count)
    theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    half = half_width(values.tolist())
    assert half == pytest.approx((theirs.high - theirs.low) / 2, rel=1e-12)
    assert from_error(float(values.std(ddof=1) / count**0.5), count) == pytest.approx(half)
    assert told_from_zero(float(values.mean()), half) == (scipy.stats.ttest_1samp(values, 0).pvalue < 0.05)


@pytest.mark.parametrize(("successes", "count"), [(0, 20), (3, 20), (20, 20), (38, 42)])
def test_exact_interval_of_a_share(successes: int, count: int) -> None:
    theirs = scipy.stats.binomtest(successes, count).proportion_ci(0.95, method="exact")
    assert share_interval(successes, count) == pytest.approx((theirs.low, theirs.high))


def test_one_value_tells_nothing() -> None:
    assert half_width([3.0]) is None
    assert from_error(0.1, 1) is None
    assert not told_from_zero(3.0, None)


def test_shares_of_the_same_trials_however_they_hang_together() -> None:
    """Independent, equal and opposite trials: the difference stays inside in at least 95 of 100 draws."""
    rng = np.random.default_rng(0)
    for second in (lambda u: rng.random(u.shape), lambda u: u, lambda u: 1 - u):
        first = rng.random((2000, 400))
        other = second(first)
        p, q = (first < 0.8).mean(axis=1), (other < 0.7).mean(axis=1)
        inside = [abs(a - b - 0.1) <= of_shares(a, b, 400) for a, b in zip(p, q, strict=True)]
        assert np.mean(inside) >= 0.94


@pytest.mark.parametrize(
    ("value", "half", "words"),
    [
        (4.19688, 0.36277, "+4.20 ± 0.36"),
        (0.376, 1.02, "+0.4 ± 1.0"),
        (0.0082, 0.0334, "+0.008 ± 0.033"),
        (-0.00001, 0.0996, "+0.00 ± 0.10"),
        (123.4, 57.9, "+123 ± 58"),
        (0.2621, 0.2579, "+0.262 ± 0.258"),  # 0 lies outside, which two digits would hide
        (-0.2621, 0.2579, "-0.262 ± 0.258"),
        (0.1234, 0.0, "+0.123 ± 0"),
        (0.1234, None, "+0.123"),
    ],
)
def test_a_value_has_the_digits_that_its_interval_allows(value: float, half: float | None, words: str) -> None:
    assert plus_minus(value, half) == words
    assert plus_minus(abs(value), half, signed=False) == words.lstrip("+-")


@given(st.floats(-10, 10), st.floats(1e-6, 10))
def test_what_is_told_from_0_is_seen_to_be(value: float, half: float) -> None:
    near, spread = (float(part) for part in plus_minus(value, half).split(" ± "))
    assert abs(spread / half - 1) < 0.06
    if abs(abs(value) - half) > 1e-9:
        assert (abs(near) > spread) == told_from_zero(value, half)
