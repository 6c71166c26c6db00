"""How well a prediction orders what was measured: Spearman's rank correlation, and the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats


@dataclass(frozen=True)
class RankCorrelation:
    """rho in [-1, 1] over `count` pairs with both values; p is the two-sided chance of as much under independence.

    Both are None where fewer than four pairs are left or one side is constant.
    """

    predicted: str
    measured: str
    rho: float | None
    p: float | None
    count: int


def rank_correlation(
    predicted: str, measured: str, first: Sequence[float | None], second: Sequence[float | None]
) -> RankCorrelation:
    """Spearman's rho of two columns, rows with a gap left out."""
    pairs = np.array(
        [[a, b] for a, b in zip(first, second, strict=True) if _there(a) and _there(b)], dtype=np.float64
    )
    count = len(pairs)
    if count < 4 or (np.ptp(pairs, axis=0) == 0).any():
        return RankCorrelation(predicted, measured, None, None, count)
    found = scipy.stats.spearmanr(pairs[:, 0], pairs[:, 1])
    return RankCorrelation(predicted, measured, float(found.statistic), float(found.pvalue), count)


def area_under_curve(values: Sequence[float | None], positive: Sequence[bool]) -> float | None:
    """The chance that a positive item has a larger value than another one, ties counting half; rows with a gap are
    left out. 0.5 is what a random order gives; None where one of the two kinds is missing.
    """
    pairs = [(value, right) for value, right in zip(values, positive, strict=True) if _there(value)]
    right = np.array([each for _, each in pairs], dtype=bool)
    if right.all() or not right.any():
        return None
    ranks = scipy.stats.rankdata([value for value, _ in pairs])
    count = int(right.sum())
    return float((ranks[right].sum() - count * (count + 1) / 2) / (count * (len(pairs) - count)))


def _there(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))
