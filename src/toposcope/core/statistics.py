"""95% intervals: Student's of a mean, and whether it tells the mean from 0; Clopper and Pearson's of a share.

A sentence that names the worst or the best of several noisy numbers says how sure that is, by what stands here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVEL = 0.95
_MOST_DIGITS = 12


def half_width(values: Sequence[float]) -> float | None:
    """Half of the interval of the mean of independent values; None for fewer than two."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return from_error(error, count)


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean of independent values, and half of its interval; None where one value says nothing of the spread."""
    return math.fsum(values) / len(values), half_width(values)


def from_error(error: float | None, count: int) -> float | None:
    """The same from the standard error of the mean of so many values."""
    if error is None or count < 2:
        return None
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.5 + LEVEL / 2)) * error


def of_shares(first: float, second: float, count: int) -> float:
    """Half of the interval of the difference of two shares of the same `count` trials, whatever they have in common.

    Each share is known to within 1.96 sqrt(p (1 - p) / n), and errors of the two can at most add up.
    """
    return 1.96 * sum(math.sqrt(max(p * (1 - p), 0.0) / count) for p in (first, second))


def share_interval(successes: int, count: int) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson), from so many successes in so many independent trials."""
    from scipy.special import betaincinv

    tail = (1 - LEVEL) / 2
    low = float(betaincinv(successes, count - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, count - successes, 1 - tail)) if successes < count else 1.0
    return low, high


def least_share(found: int, of: int) -> float:
    """The lower end of the one-sided interval of a share: that from which so many would be found in 1 of 20 trials.

    Clopper's and Pearson's: it holds for any number of independent trials.
    """
    from scipy.special import betaincinv

    return 0.0 if not found else float(betaincinv(found, of - found + 1, 1 - LEVEL))


def told_from_zero(value: float, half: float | None) -> bool:
    """Whether 0 lies outside the interval; without an interval nothing is told."""
    return half is not None and abs(value) > half


def plus_minus(value: float, half: float | None, *, signed: bool = True) -> str:
    """A value and half of its interval, to two significant digits of that: '+4.20 ± 0.36'.

    Where 0 lies outside the interval there are as many digits as it takes to see it. Without one: three decimals.
    """
    sign = "+" if signed else ""
    if half is None or half == 0:
        return f"{round(value, 3) + 0.0:{sign}.3f}" + ("" if half is None else " ± 0")
    digits = max(0, 1 - int(f"{half:.1e}".partition("e")[2]))
    while (
        told_from_zero(value, half) and digits < _MOST_DIGITS and not told_from_zero(*_rounded(value, half, digits))
    ):
        digits += 1
    near, spread = _rounded(value, half, digits)
    return f"{near:{sign}.{digits}f} ± {spread:.{digits}f}"


def _rounded(value: float, half: float, digits: int) -> tuple[float, float]:
    return round(value, digits) + 0.0, round(half, digits)
