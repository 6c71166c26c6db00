"""What a trace gives back: rows of heads with medians and quartiles, patterns, agreement, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from toposcope.checkpoints.spec import Skipped
from toposcope.models.patterns import THRESHOLDS
from toposcope.models.trace_agreement import Agreement
from toposcope.models.trace_logits import LogitPicture

METRICS = (
    "rho",
    "erank_ratio",
    "maj_gap",
    "cap",
    "toeplitz",
    "toeplitz_centred",
    "content",
    "position",
    "coupling",
    "gram_content",
    "gram_mixed",
    "gram_position",
    "gram_cross",
    "kernel_rho",
    "distance",
    "entropy",
)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over `count` sequences."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class HeadTrace:
    """One head on all sequences, of at most `tokens` tokens; see `models.trace` for the metrics.

    `metrics` and `scores` hold None where nothing was measured (`TraceResult.gaps` says why); `uniform` is what
    uniform attention would score. `kernel` lists the mean kernel at offsets 0, 1, 2, ...; `peak_agreement` is the
    share of sequences whose own kernel peaks at `peak_offset` too. `route` tells how contraction was computed.
    """

    layer: int
    head: int
    tokens: int
    names: tuple[str, ...]
    route: str
    peak_offset: int | None
    peak_agreement: float | None
    kernel: tuple[float, ...]
    metrics: Mapping[str, Spread | None]
    scores: Mapping[str, Spread | None]
    uniform: Mapping[str, float]

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"

    @property
    def positional(self) -> float | None:
        """The share of position in the logits: of their variance, or of their Gram square."""
        found = self.median("position")
        return self.median("gram_position") if found is None else found

    def median(self, metric: str) -> float | None:
        found = self.metrics[metric]
        return None if found is None else found.median

    def score(self, pattern: str) -> float | None:
        found = self.scores[pattern]
        return None if found is None else found.median

    def row(self) -> dict[str, Any]:
        """One line of a table: medians, and quartiles after them."""
        found: dict[str, Any] = {"layer": self.layer, "head": self.head, "names": " ".join(self.names)}
        for name, spread in [*self.scores.items(), *self.metrics.items()]:
            for part in ("median", "low", "high"):
                label = name if part == "median" else f"{name}_{part}"
                found[label] = None if spread is None else getattr(spread, part)
        return {**found, "peak_offset": self.peak_offset, "peak_agreement": self.peak_agreement, "route": self.route}


@dataclass(frozen=True)
class Gap:
    """A metric that some heads lack, and why."""

    metric: str
    why: str
    heads: int


@dataclass(frozen=True)
class TraceResult:
    """A model on a text. `rebuilt` is the largest relative difference between the heads' outputs and those rebuilt
    from the content that was measured; `null_share` the gram_position that content alone would leave in the means.
    """

    about: Mapping[str, Any]
    text: str
    sequences: int
    tokens: int
    heads: tuple[HeadTrace, ...]
    agreement: Agreement | None
    gaps: tuple[Gap, ...]
    skipped: tuple[Skipped, ...]
    rebuilt: float
    null_share: float | None
    other: str | None = None  # the encoding that was put in, where it is not the model's own
    logits: tuple[LogitPicture, ...] = ()  # of a few heads, on the first sequence

    def named(self, pattern: str) -> tuple[HeadTrace, ...]:
        """The heads named for a pattern, the strongest first."""
        found = [each for each in self.heads if pattern in each.names]
        return tuple(sorted(found, key=lambda each: -(each.score(pattern) or 0.0)))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without what the envelope holds."""
        return {
            "text": self.text,
            "sequences": self.sequences,
            "tokens": self.tokens,
            "other": self.other,
            "rebuilt": self.rebuilt,
            "thresholds": dict(THRESHOLDS),
            "patterns": {name: [each.name for each in self.named(name)] for name in THRESHOLDS},
            "agreement": None if self.agreement is None else self.agreement.as_dict(),
            "null_share": self.null_share,
            "gaps": [asdict(gap) for gap in self.gaps],
            "heads": [asdict(each) for each in self.heads],
            "logits": [asdict(each) for each in self.logits],
        }
