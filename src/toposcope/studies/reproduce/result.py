"""What `toposcope.reproduce` returns: claims with their verdicts, and every number behind them with its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from toposcope.core.paired import PairedOutcome
from toposcope.core.result import Result


class ClaimVerdict(StrEnum):
    """What the runs say of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    SCALE = "not at this scale"
    UNMEASURED = "not measured here"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class ReproducedClaim:
    """A claim as stated, what the released code does, what was measured, and the verdict.

    Coupling has two of both: of models as described, and as released (`_published`). `runs` begin the keys of all.
    A study also says what was said of the claim `before`, and what would `change` its outcome.
    """

    id: str
    claim: str
    released_code: str
    measured: tuple[str, ...]
    verdict: ClaimVerdict
    rule: str
    runs: tuple[str, ...] = ()
    measured_published: tuple[str, ...] | None = None
    verdict_published: ClaimVerdict | None = None
    before: str | None = None
    change: str | None = None


@dataclass(frozen=True)
class ClaimNumber:
    """One number behind a verdict (`decides`) or beside it: mean, half of its interval, and the keys of its runs."""

    claim: str
    variant: str
    decides: bool
    what: str
    unit: str
    mean: float
    half: float | None
    n: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class CouplingCell:
    """One task, encoding and variant of coupling: accuracy in percent, and the deposit index of both layers."""

    variant: str
    task: str
    encoding: str
    seeds: int
    accuracy: float
    half: float | None
    floor: float
    ceiling: float
    reported: float | None
    deposit_0: float | None
    deposit_1: float | None
    deposit_half_0: float | None
    deposit_half_1: float | None
    runs: tuple[str, ...]


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds, half of its interval (None for one), and how many there are."""

    mean: float
    half: float | None
    n: int


@dataclass(frozen=True)
class ProbeRow:
    """One cell of the byte models: its bits, its difference from the group's base, and what its tokens do.

    `held`: in how many runs every verdict was the `promised` one; `margin` is the least of those verdicts. Real parts
    of the spectra reach from `omega` to `alpha`; `negative_heads` and `negative_layers` are shares of eigenvalues.
    """

    group: str
    cell: str
    words: str
    base: str
    seeds: int
    parameters: int
    redundant: int
    bits: SeedMean | None
    less: SeedMean | None
    says: str
    bits_other: SeedMean | None
    less_other: SeedMean | None
    says_other: str
    cosine: SeedMean | None
    rank: SeedMean | None
    radial: SeedMean | None
    dispersion: SeedMean | None
    noise: SeedMean | None
    longer: SeedMean | None
    moved: SeedMean | None
    slower: float | None
    negative_heads: float | None
    negative_layers: float | None
    promised: str | None
    held: int | None
    verdicts: tuple[str, ...]
    margin: float | None
    omega: float | None
    alpha: float | None
    exact: bool
    runs: tuple[str, ...]


@dataclass(frozen=True)
class ProbeTable:
    """The byte models of dynamics: their sizes, and a row for each cell."""

    size: str
    runs_done: int
    sizes: Mapping[str, Any]
    rows: tuple[ProbeRow, ...]


@dataclass(frozen=True)
class StudyAnswer:
    """One question of a study: a number for each seed, its mean, and what it comes to (see `core.paired`).

    `p` and `p_equivalent` are corrected for the family. `detectable` is the difference that would be seen with 80 %,
    `power` the probability with which one as large as the bound would.
    """

    claim: str
    name: str
    measure: str
    unit: str
    decides: bool
    direction: str
    at: float
    bound: float | None
    n: int
    mean: float | None
    half: float | None
    spread: float | None
    p: float | None
    p_equivalent: float | None
    detectable: float | None
    power: float | None
    outcome: ClaimVerdict
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    runs: tuple[str, ...]

    @property
    def paired(self) -> PairedOutcome:
        return PairedOutcome(self.outcome)

    @property
    def rule(self) -> str:
        """What was asked, in words."""
        bound = "" if self.bound is None else f", equivalent within {self.bound:g}"
        return f"{self.measure}, {self.name}: {self.direction} {self.at:g}{bound}"

    def __str__(self) -> str:
        if self.mean is None:
            return f"{self.name}, {self.measure}: no runs"
        spread = "" if self.half is None else f" ± {self.half:.3g}"
        unit = f" {self.unit}" if self.unit else ""
        said = f"{self.name}, {self.measure}: {self.mean:.3g}{spread}{unit} ({self.n}), {self.outcome}"
        if self.outcome == ClaimVerdict.EQUIVALENT:
            return f"{said} within {self.bound:g}"
        if self.outcome == ClaimVerdict.UNDECIDED and self.detectable is not None:
            return f"{said}: a difference of {self.detectable:.3g} would be seen with 80 %"
        return said


@dataclass(frozen=True)
class StudyPoint:
    """An arm in a picture: its series, its place `x` (a setting, or the mean of a measure), its mean over seeds."""

    picture: str
    measure: str
    x_name: str
    series: str
    arm: str
    x: float
    mean: float
    half: float | None
    n: int
    runs: tuple[str, ...]


@dataclass(frozen=True)
class StudySelfTest:
    """A question tried on arms made equal, and with a handicap on one: how often it was found, beside its power.

    `found_in_equal_arms` counts in `shuffles`, `false_rate` and `found` are shares of `trials`; all at the strictest
    level of the study's correction.
    """

    question: str
    pairs: int
    shuffles: int
    found_in_equal_arms: int | None
    false_rate: float | None
    handicap: float | None
    power: float | None
    trials: int
    found: float | None
    found_low: float | None
    found_high: float | None


@dataclass(frozen=True)
class StudyOutcome:
    """A study: the rules it was judged by (their hash and commit), its answers, pictures, and tests of itself."""

    name: str
    title: str
    about: str
    rules_sha256: str
    rules_commit: str | None
    family: int
    answers: tuple[StudyAnswer, ...]
    points: tuple[StudyPoint, ...]
    self_tests: tuple[StudySelfTest, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReproduceResult(Result):
    """The papers' claims beside what was measured. Runs that failed are among the `skipped`."""

    kind = "reproduce"
    table = "claims"

    what: str
    size: str
    seeds: int
    claims: tuple[ReproducedClaim, ...]
    runs_done: int = 0
    profile: str | None = None
    cells: tuple[CouplingCell, ...] = ()
    numbers: tuple[ClaimNumber, ...] = ()
    probe: ProbeTable | None = None
    study: StudyOutcome | None = None
