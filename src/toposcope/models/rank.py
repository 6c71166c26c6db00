"""How well a prediction orders what was measured: Spearman's rank correlation, and the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
    rho = float(np.clip(np.corrcoef([ranks(column) for column in pairs.T])[0, 1], -1, 1))
    return RankCorrelation(predicted, measured, rho, _chance(rho, count), count)


def area_under_curve(values: Sequence[float | None], positive: Sequence[bool]) -> float | None:
    """The chance that a positive item has a larger value than another one, ties counting half; rows with a gap are
    left out. 0.5 is what a random order gives; None where one of the two kinds is missing.
    """
    pairs = [(value, right) for value, right in zip(values, positive, strict=True) if _there(value)]
    right = np.array([each for _, each in pairs], dtype=bool)
    if right.all() or not right.any():
        return None
    places = ranks(np.array([value for value, _ in pairs], dtype=np.float64))
    count = int(right.sum())
    return float((places[right].sum() - count * (count + 1) / 2) / (count * (len(pairs) - count)))


def ranks(values_N: Array) -> Array:
    """1 for the least value, and so on; equal values share the mean of their places. (`scipy.stats` has it, and is
    slower to import than a scan of a small model.)
    """
    _, place, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place])


def _chance(rho: float, count: int) -> float:
    """The two-sided p of Spearman's rho by Student's distribution."""
    from scipy.special import stdtr

    if abs(rho) == 1:
        return 0.0
    return 2 * float(stdtr(count - 2, -abs(rho) * np.sqrt((count - 2) / (1 - rho**2))))


def _there(value: float | None) -> bool:
    return value is not None and bool(np.isfinite(value))
