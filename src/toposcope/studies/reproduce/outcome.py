"""Claims judged, as flat records that a report can show, beside every number and the runs behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toposcope.lab.config import VARIANTS
from toposcope.studies.reproduce.claims import Claim, Judgement
from toposcope.studies.reproduce.coupling import REPORTED
from toposcope.studies.reproduce.evidence import ACCURACY, DEPOSIT, SKILL, Evidence, Measure, of_layer

SHORT_KEY = 8
LAYERS = 2  # of the models in the table: the laptop profiles


def judged_claims(claims: Sequence[Claim[[Evidence, str]]], evidence: Evidence) -> list[dict[str, Any]]:
    """A record for each claim: as stated, what the released code does, both variants' measurements and verdicts."""
    return [_record(claim, {variant: claim.judge(evidence, variant) for variant in VARIANTS}) for claim in claims]


def _record(claim: Claim[[Evidence, str]], found: dict[str, Judgement]) -> dict[str, Any]:
    described, published = found["described"], found["published"]
    return {
        "id": claim.id,
        "claim": claim.claim,
        "released_code": claim.released,
        "measured": _words(described),
        "verdict": described.verdict.value,
        "measured_published": _words(published),
        "verdict_published": published.verdict.value,
        "rule": claim.rule,
        "runs": sorted(key[:SHORT_KEY] for key in {*described.runs, *published.runs}),
    }


def _words(judgement: Judgement) -> list[str]:
    beside = [f"(beside: {each})" for each in judgement.beside]
    return [*map(str, judgement.estimates), *beside] or ["-"]


def numbers(claims: Sequence[Claim[[Evidence, str]]], evidence: Evidence) -> list[dict[str, Any]]:
    """Every number of the page with the whole keys of its runs."""
    found = []
    for claim in claims:
        for variant in VARIANTS:
            judgement = claim.judge(evidence, variant)
            for decides, estimates in ((True, judgement.estimates), (False, judgement.beside)):
                for each in estimates:
                    found.append(
                        {
                            "claim": claim.id,
                            "variant": variant,
                            "decides": decides,
                            "what": each.what,
                            "unit": each.unit,
                            "mean": each.mean,
                            "half": each.half,
                            "n": each.n,
                            "runs": list(each.runs),
                        }
                    )
    return found


def table(evidence: Evidence) -> list[dict[str, Any]]:
    """Accuracy and deposit of every cell, beside the task's floor and ceiling and what was reported."""
    rows = []
    for variant, task, encoding in sorted(evidence.cells(), key=_order):
        runs = evidence.of(variant, task, encoding)
        first = next(iter(runs.values()))
        accuracy = evidence.mean(variant, task, encoding, ACCURACY)
        skill = evidence.mean(variant, task, encoding, SKILL)
        assert accuracy is not None
        assert skill is not None
        deposits = [evidence.mean(variant, task, encoding, _deposit(layer)) for layer in range(LAYERS)]
        rows.append(
            {
                "variant": variant,
                "task": task,
                "encoding": encoding,
                "seeds": accuracy.n,
                "accuracy": accuracy.mean,
                "half": accuracy.half,
                "floor": 100 * first["floor"],
                "ceiling": 100 * first["ceiling"],
                "reported": REPORTED.get(task, {}).get(encoding),
                **{f"deposit_{layer}": None if each is None else each.mean for layer, each in enumerate(deposits)},
                **{
                    f"deposit_half_{layer}": None if each is None else each.half
                    for layer, each in enumerate(deposits)
                },
                "runs": list(accuracy.runs),
            }
        )
    return rows


def _deposit(layer: int) -> Measure:
    return (
        DEPOSIT
        if layer == 0
        else Measure(f"deposit index of layer {layer}", "", lambda run: of_layer(run, layer, "di"))
    )


def _order(cell: tuple[str, str, str]) -> tuple[int, int]:
    """Described before published, distance before count; encodings in the order they were run."""
    return VARIANTS.index(cell[0]), ("distance", "count").index(cell[1])
