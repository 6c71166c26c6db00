"""Intervals of means against SciPy's, and of shares against draws."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from toposcope.core.statistics import around, from_error, half_width, of_shares, share_interval, told_from_zero


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


def test_in_words() -> None:
    assert around(0.321, 1.1457) == "-0.825 to 1.467"
    assert around(0.0, 0.0001) == "0.000 to 0.000"
