"""A claim, the rule that judges it, and the verdict. Rules are fixed here, before any run is looked at.

* ahead: holds where the interval of every difference lies above 0; does not hold where one lies below 0
* beyond: holds where the interval lies above a threshold; does not hold where it lies below
* everything else, one seed included: not at this scale. That is no verdict on the claim, only on these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, ParamSpec

from toposcope.studies.reproduce.evidence import Estimate
from toposcope.studies.reproduce.result import ClaimNumber, ClaimVerdict


@dataclass(frozen=True)
class Judgement:
    """A verdict with the estimates it rests on (`beside` stand by for the reader, without a say)."""

    verdict: ClaimVerdict
    estimates: tuple[Estimate, ...] = ()
    beside: tuple[Estimate, ...] = ()

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for each in (*self.estimates, *self.beside) for key in each.runs))

    @property
    def words(self) -> tuple[str, ...]:
        """What was measured, a line for each estimate."""
        return (*map(str, self.estimates), *(f"(beside: {each})" for each in self.beside)) or ("-",)

    def numbers(self, claim: str, variant: str) -> list[ClaimNumber]:
        """Every number behind the verdict, or beside it, with the whole keys of its runs."""
        return [
            ClaimNumber(claim, variant, decides, each.what, each.unit, each.mean, each.half, each.n, each.runs)
            for decides, estimates in ((True, self.estimates), (False, self.beside))
            for each in estimates
        ]


P = ParamSpec("P")


@dataclass(frozen=True)
class PaperClaim(Generic[P]):
    """What is claimed, what the released code does about it, the rule fixed beforehand, and who applies it."""

    id: str
    claim: str
    released: str
    rule: str
    judge: Callable[P, Judgement]


def ahead(estimates: Sequence[Estimate | None], beside: Sequence[Estimate | None] = ()) -> Judgement:
    """Are all these differences above 0?"""
    return judged(estimates, lambda each: (each.low > 0, each.high < 0), beside)


def beyond(estimates: Sequence[Estimate | None], least: float, beside: Sequence[Estimate | None] = ()) -> Judgement:
    """Do all these means reach a threshold?"""
    return judged(estimates, lambda each: (each.low >= least, each.high < least), beside)


def below(estimates: Sequence[Estimate | None], most: float, beside: Sequence[Estimate | None] = ()) -> Judgement:
    """Do all these means stay under a threshold?"""
    return judged(estimates, lambda each: (each.high < most, each.low >= most), beside)


def apart(estimates: Sequence[Estimate | None], beside: Sequence[Estimate | None] = ()) -> Judgement:
    """Does every difference exclude 0, in whichever direction? This can hold, but no run can refute it."""
    return judged(estimates, lambda each: (each.low > 0 or each.high < 0, False), beside)


def judged(
    estimates: Sequence[Estimate | None],
    test: Callable[[Estimate], tuple[bool, bool]],
    beside: Sequence[Estimate | None] = (),
) -> Judgement:
    """All for: holds. One against: does not hold. None at all: not measured. `test` says (for, against)."""
    known = tuple(each for each in estimates if each is not None)
    others = tuple(each for each in beside if each is not None)
    if not known:
        return Judgement(ClaimVerdict.UNMEASURED, (), others)
    said = [test(each) for each in known]
    if any(against for _, against in said):
        verdict = ClaimVerdict.FAILS
    else:
        verdict = ClaimVerdict.HOLDS if all(fine for fine, _ in said) else ClaimVerdict.SCALE
    return Judgement(verdict, known, others)
