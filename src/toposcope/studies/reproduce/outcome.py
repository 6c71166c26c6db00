"""Claims judged, as records that a report can show, beside every number and the runs behind it."""

from __future__ import annotations

from collections.abc import Sequence

from toposcope.lab.config import VARIANTS
from toposcope.lab.result import TrainResult
from toposcope.studies.reproduce.claims import PaperClaim
from toposcope.studies.reproduce.coupling import REPORTED
from toposcope.studies.reproduce.evidence import ACCURACY, DEPOSIT, Evidence, RunMeasure, of_layer
from toposcope.studies.reproduce.result import ClaimNumber, CouplingCell, ReproducedClaim

SHORT_KEY = 8
CouplingClaim = PaperClaim[[Evidence, str]]


def judged_claims(claims: Sequence[CouplingClaim], evidence: Evidence) -> list[ReproducedClaim]:
    """A record for each claim: as stated, what the released code does, both variants' measurements and verdicts."""
    return [_record(claim, evidence) for claim in claims]


def _record(claim: CouplingClaim, evidence: Evidence) -> ReproducedClaim:
    described, published = (claim.judge(evidence, variant) for variant in ("described", "published"))
    return ReproducedClaim(
        id=claim.id,
        claim=claim.claim,
        released_code=claim.released,
        measured=described.words,
        verdict=described.verdict,
        measured_published=published.words,
        verdict_published=published.verdict,
        rule=claim.rule,
        runs=tuple(sorted(key[:SHORT_KEY] for key in {*described.runs, *published.runs})),
    )


def numbers(claims: Sequence[CouplingClaim], evidence: Evidence) -> list[ClaimNumber]:
    """Every number of the page with the whole keys of its runs."""
    return [
        number
        for claim in claims
        for variant in VARIANTS
        for number in claim.judge(evidence, variant).numbers(claim.id, variant)
    ]


def table(evidence: Evidence) -> list[CouplingCell]:
    """Accuracy and deposit of every cell, beside the task's floor and ceiling and what was reported."""
    return [_cell(evidence, *place) for place in sorted(evidence.cells(), key=_order)]


def _cell(evidence: Evidence, variant: str, task: str, encoding: str) -> CouplingCell:
    first = next(iter(evidence.of(variant, task, encoding).values()))
    accuracy = evidence.mean(variant, task, encoding, ACCURACY)
    assert accuracy is not None
    deposits = [evidence.mean(variant, task, encoding, _deposit(layer)) for layer in (0, 1)]  # laptop profiles
    means, halves = ([getattr(each, name, None) for each in deposits] for name in ("mean", "half"))
    return CouplingCell(
        variant=variant,
        task=task,
        encoding=encoding,
        seeds=accuracy.n,
        accuracy=accuracy.mean,
        half=accuracy.half,
        floor=100 * first.floor,
        ceiling=100 * first.ceiling,
        reported=REPORTED.get(task, {}).get(encoding),
        deposit_0=means[0],
        deposit_1=means[1],
        deposit_half_0=halves[0],
        deposit_half_1=halves[1],
        runs=accuracy.runs,
    )


def _deposit(layer: int) -> RunMeasure[TrainResult]:
    if layer == 0:
        return DEPOSIT
    return RunMeasure(f"deposit index of layer {layer}", "", lambda run: of_layer(run, layer, "di"))


def _order(cell: tuple[str, str, str]) -> tuple[int, int]:
    """Described before published, distance before count; encodings in the order they were run."""
    return VARIANTS.index(cell[0]), ("distance", "count").index(cell[1])
