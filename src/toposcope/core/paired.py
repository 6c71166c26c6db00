"""What pairs of runs decide: contrasts seed by seed, tests with Holm's correction, equivalence, and power.

A study asks several questions of one set of runs. Each is a contrast (first less second, on the same seed), whose
mean is compared with a value by Student's test. Two families are corrected by Holm's method, each at 5%: "it differs
from the value", and "it differs by less than the bound" (two one-sided tests). What neither decides is undecided, and
then says how large a difference would have been seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from toposcope.core.errors import BadValue
from toposcope.core.statistics import LEVEL, from_error

ERROR_RATE = 1 - LEVEL
SEEN = 0.8  # the power at which a difference counts as one that would be seen
Direction = Literal["above", "below", "apart"]


class PairedOutcome(StrEnum):
    """What the pairs say of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class PairedQuestion:
    """Is the mean `above` (`below`, `apart` from) the value `at`? Differences of less than `bound` do not matter.

    `resolution` is the grid on which the numbers were measured: their spread counts as at least that of rounding.
    """

    direction: Direction = "above"
    at: float = 0.0
    bound: float | None = None
    resolution: float = 0.0

    def __post_init__(self) -> None:
        if self.direction not in ("above", "below", "apart"):
            raise BadValue(f"a mean is above, below or apart from a value, not '{self.direction}'.")
        for name in ("at", "bound", "resolution"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise BadValue(f"{name} must be a finite number, got {value}.")
        if (self.bound is not None and self.bound <= 0) or self.resolution < 0:
            raise BadValue(
                f"a bound is above 0 and a resolution not below it, got {self.bound} and {self.resolution}."
            )


@dataclass(frozen=True)
class PairedAnswer:
    """One question answered. `p` and `p_equivalent` are corrected; None where they cannot be had.

    `detectable` is the difference that as many pairs with this spread show with a probability of 80%, and `power`
    the probability with which they show one as large as the bound: both at the strictest level of the correction.
    """

    n: int
    mean: float | None
    half: float | None
    spread: float | None
    p: float | None
    p_equivalent: float | None
    detectable: float | None
    power: float | None
    outcome: PairedOutcome


def contrast(arms: Mapping[str, Mapping[int, float | None]], weights: Mapping[str, float]) -> dict[int, float]:
    """The weighted sum of the arms, seed by seed, over the seeds that every arm has a number for."""
    chosen = [arms.get(name, {}) for name in weights]
    common = set.intersection(*(set(each) for each in chosen)) if chosen else set()
    found = {}
    for seed in sorted(common):
        values = [each[seed] for each in chosen]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            found[seed] = math.fsum(w * value for w, value in zip(weights.values(), known, strict=True))
    return found


def spread_of(values: Sequence[float], resolution: float = 0.0) -> float | None:
    """The standard deviation of such values, at least that of two roundings; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    found = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return max(found, resolution / math.sqrt(6))  # each of the two is off by a uniform part of the grid


def p_differs(n: int, mean: float, spread: float, at: float = 0.0) -> float | None:
    """Student's two-sided test that the mean is not `at`; None where the values do not spread."""
    if n < 2 or spread <= 0:
        return None
    from scipy.special import stdtr

    return 2 * float(stdtr(n - 1, -abs(mean - at) / (spread / math.sqrt(n))))


def p_equivalent(n: int, mean: float, spread: float, bound: float, at: float = 0.0) -> float | None:
    """Two one-sided tests that the mean is within `bound` of `at`: the larger p; None without a spread."""
    if n < 2 or spread <= 0:
        return None
    from scipy.special import stdtr

    return float(stdtr(n - 1, (abs(mean - at) - bound) / (spread / math.sqrt(n))))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Each p corrected for its family (Holm's step-down method). Those of None count as asked, and stay None."""
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    found: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (value, place) in enumerate(known):
        least = max(least, min(1.0, (len(values) - rank) * value))
        found[place] = least
    return found


def power(n: int, spread: float, difference: float, *, rate: float = ERROR_RATE) -> float:
    """The probability with which n pairs of this spread show such a difference, by a two-sided test at `rate`."""
    if n < 2 or spread <= 0:
        return 0.0
    from scipy.special import nctdtr, stdtrit

    edge = float(stdtrit(n - 1, 1 - rate / 2))
    shift = abs(difference) / (spread / math.sqrt(n))
    # the two tails: right and wrong sign; far out the distribution function has no digits left, and the answer is 1
    right, wrong = (float(nctdtr(n - 1, shift, sign * edge)) for sign in (1, -1))
    return min(1.0, max(0.0, 1 - (0.0 if math.isnan(right) else right) + (0.0 if math.isnan(wrong) else wrong)))


def detectable(n: int, spread: float, *, wanted: float = SEEN, rate: float = ERROR_RATE) -> float | None:
    """The smallest difference that n pairs of this spread show with that probability."""
    if n < 2 or spread <= 0:
        return None
    from scipy.optimize import brentq

    high = spread
    while power(n, spread, high, rate=rate) < wanted:
        high *= 2
    return float(brentq(lambda difference: power(n, spread, difference, rate=rate) - wanted, 0.0, high, rtol=1e-9))


def answered(asked: Sequence[tuple[Sequence[float], PairedQuestion]], rate: float = ERROR_RATE) -> list[PairedAnswer]:
    """All questions of a family, each with the values of its contrast, judged together."""
    means = [math.fsum(values) / len(values) if values else None for values, _ in asked]
    spreads = [spread_of(values, question.resolution) for values, question in asked]
    differs: list[float | None] = []
    same: list[float | None] = []
    for (values, question), mean, spread in zip(asked, means, spreads, strict=True):
        if mean is None or spread is None:
            differs.append(None)
            same.append(None)
            continue
        differs.append(p_differs(len(values), mean, spread, question.at))
        bound = question.bound
        same.append(None if bound is None else p_equivalent(len(values), mean, spread, bound, question.at))
    found = []
    rows = zip(asked, means, spreads, holm(differs), _holm_of_bounded(asked, same), strict=True)
    for (values, question), mean, spread, p, p_same in rows:
        strictest, n = rate / len(asked), len(values)
        found.append(
            PairedAnswer(
                n=n,
                mean=mean,
                half=None if spread is None else from_error(spread / math.sqrt(n), n),
                spread=spread,
                p=p,
                p_equivalent=p_same,
                detectable=None if spread is None else detectable(n, spread, rate=strictest),
                power=None if spread is None or question.bound is None else power(
                    n, spread, question.bound, rate=strictest
                ),
                outcome=_outcome(question, mean, p, p_same, rate),
            )
        )  # fmt: skip
    return found


def _holm_of_bounded(
    asked: Sequence[tuple[Sequence[float], PairedQuestion]], values: Sequence[float | None]
) -> list[float | None]:
    """Only questions with a bound ask about equivalence: they alone are the family."""
    places = [place for place, (_, question) in enumerate(asked) if question.bound is not None]
    found: list[float | None] = [None] * len(asked)
    for place, value in zip(places, holm([values[place] for place in places]), strict=True):
        found[place] = value
    return found


def _outcome(
    question: PairedQuestion, mean: float | None, p: float | None, p_same: float | None, rate: float
) -> PairedOutcome:
    """Equivalence goes first: a difference may be certain, and smaller than any that matters."""
    if p_same is not None and p_same <= rate:
        return PairedOutcome.EQUIVALENT
    if mean is None or p is None or p > rate:
        return PairedOutcome.UNDECIDED
    if question.direction == "apart" or (mean > question.at) == (question.direction == "above"):
        return PairedOutcome.HOLDS
    return PairedOutcome.FAILS


def together(outcomes: Sequence[PairedOutcome], needs: Literal["all", "any"] = "all") -> PairedOutcome:
    """The outcome of a claim that needs all of its questions, or any of them.

    All: one against it is against the claim, and so is one that is equivalent. Any: one for it is for the claim.
    """
    if not outcomes:
        return PairedOutcome.UNDECIDED
    said = set(outcomes)
    if len(said) == 1:
        return outcomes[0]
    if needs == "any":
        if PairedOutcome.HOLDS in said:
            return PairedOutcome.HOLDS
        return PairedOutcome.UNDECIDED if PairedOutcome.UNDECIDED in said else PairedOutcome.FAILS
    for against in (PairedOutcome.FAILS, PairedOutcome.EQUIVALENT):
        if against in said:
            return against
    return PairedOutcome.UNDECIDED
