"""What a check reports: findings with a status, a sentence for a person, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toposcope.core.ranges import show_range
from toposcope.core.result import Result

Status = Literal["fault", "warning", "cannot_tell", "ok"]
STATUSES: tuple[Status, ...] = ("fault", "warning", "cannot_tell", "ok")
_ORDER: Mapping[Status, int] = {status: i for i, status in enumerate(STATUSES)}
# findings on the settings of the rotation, its scaling above all: the first of their status
SETTINGS = (
    *("expected-encoding", "scaling-lost", "unknown-key", "unread-settings", "settings-contradict", "kinds-disagree"),
    *("rotary-settings", "scaling-effect", "original-context", "attention-factor", "stored-frequencies", "base-lost"),
)
ON_SCALING = ("scaling-lost", "unknown-key", "unread-settings", "expected-encoding")


@dataclass(frozen=True)
class Finding:
    """One thing that was checked, and what came out.

    `status` "cannot_tell" is an answer of its own: what was looked at leaves the question open. It is never "ok".
    `layers` lists the attention layers concerned, counted as in `Model.layers`; None means the whole model.
    `evidence` holds the numbers behind the explanation, for machines.
    """

    id: str
    status: Status
    title: str
    explanation: str
    what_to_do: str = ""
    layers: tuple[int, ...] | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckResult(Result):
    """What was found about the positional encoding of a model, the gravest first."""

    kind = "check"
    table = "findings"

    encoding: str  # how position is encoded, in words
    layers: int  # attention layers
    worst: Status
    verdict: str  # the outcome in one sentence
    counts: Mapping[Status, int]
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are faults."""
        return tuple(finding for finding in self.findings if finding.status == "fault")

    def find(self, id: str) -> Finding | None:
        """The gravest finding with this id, or None where the check did not apply."""
        return next((finding for finding in self.findings if finding.id == id), None)


def outcome(findings: Iterable[Finding], encoding: str) -> dict[str, Any]:
    """The fields of a result that follow from its findings."""
    found = tuple(sorted(findings, key=lambda finding: (_ORDER[finding.status], finding.id not in SETTINGS)))
    counts: dict[Status, int] = {status: sum(each.status == status for each in found) for status in STATUSES}
    return {
        "encoding": encoding,
        "worst": found[0].status if found else "ok",
        "verdict": _verdict(counts, encoding),
        "counts": counts,
        "findings": found,
    }


def _verdict(counts: Mapping[Status, int], encoding: str) -> str:
    left_open = counts["cannot_tell"]
    untold = f" {left_open} question{'s' * (left_open > 1)} left open." if left_open else ""
    words = " and ".join(
        f"{counts[status]} {status}{'s' * (counts[status] > 1)}" for status in STATUSES[:2] if counts[status]
    )
    if words:
        return f"{words} in how position is encoded: {encoding}.{untold}"
    return f"Position is in order{' as far as can be told' if untold else ''}: {encoding}.{untold}"


def scaling_fault(findings: Iterable[Finding]) -> Finding | None:
    """The first fault that says that a scaling which is written, or expected, is not in force."""

    def lost(finding: Finding) -> bool:
        expected = finding.id == "expected-encoding"
        return finding.id in ON_SCALING and (not expected or "scaling" in finding.evidence.get("differs", {}))

    return next((each for each in findings if each.status == "fault" and lost(each)), None)


def say_layers(layers: Iterable[int], total: int) -> str:
    """'all layers', 'layer 3', or 'layers 0-3, 7'."""
    numbers = sorted(set(layers))
    if len(numbers) == total and total > 1:
        return f"all {total} layers"
    text = show_range(numbers).replace(",", ", ")
    return f"{'layer' if len(numbers) == 1 else 'layers'} {text}"
