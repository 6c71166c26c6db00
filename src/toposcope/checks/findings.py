"""What a check reports: findings with a status, a sentence for a person, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toposcope.core.ranges import show_range
from toposcope.core.results import plain

Status = Literal["ok", "warning", "fault"]
_ORDER: Mapping[str, int] = {"fault": 0, "warning": 1, "ok": 2}


@dataclass(frozen=True)
class Finding:
    """One thing that was checked, and what came out.

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

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "status": self.status,
            "title": self.title,
            "explanation": self.explanation,
            "what_to_do": self.what_to_do,
            "layers": None if self.layers is None else list(self.layers),
            "evidence": {key: plain(value) for key, value in self.evidence.items()},
        }


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Faults first, then warnings, then what is in order; otherwise as found."""
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.status]))


def worst(findings: Iterable[Finding]) -> Status:
    """The gravest status among the findings; 'ok' where there are none."""
    return min((finding.status for finding in findings), key=lambda status: _ORDER[status], default="ok")


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many findings have each status."""
    found = {"fault": 0, "warning": 0, "ok": 0}
    for finding in findings:
        found[finding.status] += 1
    return found


@dataclass(frozen=True)
class CheckReport:
    """All findings about a checkpoint, the gravest first."""

    target: str
    family: str
    layers: int
    encoding: str
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Status:
        return worst(self.findings)

    @property
    def counts(self) -> dict[str, int]:
        return counts(self.findings)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        faults, warnings = self.counts["fault"], self.counts["warning"]
        if not faults and not warnings:
            return f"Position is in order: {self.encoding}."
        counted = ((faults, "fault"), (warnings, "warning"))
        words = " and ".join(f"{count} {word}{'s' * (count > 1)}" for count, word in counted if count)
        return f"{words} in how position is encoded: {self.encoding}."

    def __str__(self) -> str:
        return f"{in_lines(self.findings)}\n{self.verdict}"

    def find(self, id: str) -> Finding | None:
        """The gravest finding with this id, or None where the check did not apply."""
        return next((finding for finding in self.findings if finding.id == id), None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": "toposcope/check/1",
            "target": self.target,
            "family": self.family,
            "layers": self.layers,
            "encoding": self.encoding,
            "worst": self.worst,
            "verdict": self.verdict,
            "counts": self.counts,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def in_lines(findings: Iterable[Finding]) -> str:
    """The findings as text: a line each, with the explanation and the cure where something is wrong."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:8s}{finding.title}")
        if finding.status != "ok":
            lines += [f"        {finding.explanation}", f"        What to do: {finding.what_to_do}"]
    return "\n".join(lines)


def say_layers(layers: Iterable[int], total: int) -> str:
    """'all layers', 'layer 3', or 'layers 0-3, 7'."""
    numbers = sorted(set(layers))
    if len(numbers) == total and total > 1:
        return f"all {total} layers"
    text = show_range(numbers).replace(",", ", ")
    return f"{'layer' if len(numbers) == 1 else 'layers'} {text}"
