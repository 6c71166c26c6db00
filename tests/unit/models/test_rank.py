"""Ranks and their correlation, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from toposcope.models.rank import area_under_curve, rank_correlation, ranks


@pytest.mark.parametrize("values", [4, 30, 1000])
@pytest.mark.parametrize("kinds", [3, 10**6], ids=["ties", "distinct"])
def test_ours_and_theirs(values: int, kinds: int) -> None:
    random = np.random.default_rng(values)
    first = random.integers(kinds, size=values).astype(float)
    first[:2] = 0, 1
    second = first + kinds / 2 * random.standard_normal(values)
    assert (ranks(first) == scipy.stats.rankdata(first)).all()
    ours, theirs = rank_correlation("p", "m", list(first), list(second)), scipy.stats.spearmanr(first, second)
    assert ours.rho == pytest.approx(theirs.statistic, abs=1e-12)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    large = second > np.median(second)
    exact = scipy.stats.mannwhitneyu(first[large], first[~large]).statistic / (large.sum() * (~large).sum())
    assert area_under_curve(list(first), list(large)) == pytest.approx(exact)


def test_a_perfect_order_has_no_chance_behind_it() -> None:
    found = rank_correlation("p", "m", [1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, -3.0, -5.0])
    assert (found.rho, found.p) == (pytest.approx(-1.0), pytest.approx(0.0, abs=1e-7))
