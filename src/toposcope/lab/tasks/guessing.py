"""How often the commonest letter is right: the best guess about a place in a sentence known only as a multiset."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import poisson

Array = NDArray[np.float64]


@cache
def share_of_mode(count: int, letters: int) -> float:
    """E[largest count] / count, for `count` letters drawn uniformly and independently from `letters`.

    Given the multiset all orders are equally likely, so the letter at any one place is x with probability
    count(x) / count, and guessing the commonest letter is best. E[max] = sum_k P(max > k). With independent Poisson
    counts of mean count / letters, conditioned on their sum,

        P(max <= k) = [z^count] (sum_{j<=k} p_j z^j)^letters / Poisson(count; count).

    All terms are positive, so nothing cancels.
    """
    weights = poisson.pmf(np.arange(count + 1), count / letters)
    total = poisson.pmf(count, count)
    beyond = [
        1 - _power(np.where(np.arange(count + 1) <= most, weights, 0.0), letters)[count] / total
        for most in range(count)
    ]
    return float(np.sum(beyond)) / count


def _power(series: Array, exponent: int) -> Array:
    """A power series to an integer power, cut at its own length, by repeated squaring."""
    result = np.zeros_like(series)
    result[0] = 1.0
    while exponent:
        if exponent & 1:
            result = np.convolve(result, series)[: len(series)]
        series = np.convolve(series, series)[: len(series)]
        exponent >>= 1
    return result
