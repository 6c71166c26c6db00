"""What `toposcope.reproduce` returns: claims with their verdicts, and every number behind them with its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from toposcope.core.result import Result


class ClaimVerdict(StrEnum):
    """What the runs say of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    SCALE = "not at this scale"
    UNMEASURED = "not measured here"


@dataclass(frozen=True)
class ReproducedClaim:
    """A claim as stated, what the released code does, what was measured, and the verdict.

    Coupling has two of both: of models as described, and as released (`_published`). `runs` begin the keys of all.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ReproduceResult(Result):
    """The papers' claims beside what was measured. Runs that failed are among the `skipped`."""

    kind = "reproduce"
    table = "claims"

    what: Literal["coupling", "dynamics"]
    size: str
    seeds: int
    claims: tuple[ReproducedClaim, ...]
    runs_done: int = 0
    profile: str | None = None
    cells: tuple[CouplingCell, ...] = ()
    numbers: tuple[ClaimNumber, ...] = ()
    probe: ProbeTable | None = None
