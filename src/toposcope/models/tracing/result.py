"""What a trace gives back: rows of heads with medians and quartiles, patterns, agreement, depth, what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toposcope.core.result import Result
from toposcope.models.rank import RankCorrelation
from toposcope.models.tracing.agreement import Agreement
from toposcope.models.tracing.attention import AttentionWindow
from toposcope.models.tracing.depth import LayerDepth
from toposcope.models.tracing.logits import LogitPicture
from toposcope.models.tracing.stream import Stream
from toposcope.models.tracing.verify import HeadRun, VerdictSummary

MOSTLY = 0.5  # the share of position in its logits from which on a head is called positional
SPLIT = ("content", "position", "coupling", "gram_content", "gram_mixed", "gram_position", "gram_cross")
METRICS = (
    "rho", "erank_ratio", "maj_gap", "cap", "toeplitz", "toeplitz_centred", *SPLIT, "kernel_rho", "distance",
    "entropy",
)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """Median and quartiles over `count` sequences."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class HeadTrace:
    """One head on all sequences, of at most `tokens` tokens; see `models.tracing.trace` for the metrics.

    Metrics, and the shares of attention `on_...`, are None where nothing was measured (`TraceResult.gaps` says why);
    `uniform` is what uniform attention would have on each pattern. `kernel` lists the mean kernel at offsets 0, 1,
    2, ...; `peak_agreement` is the share of sequences whose own kernel peaks at `peak_offset` too. `route` tells how
    the logit norm ratio `rho` was computed.
    """

    layer: int
    head: int
    tokens: int
    names: tuple[str, ...]
    route: str
    peak_offset: int | None
    peak_agreement: float | None
    kernel: tuple[float, ...]
    rho: Spread | None
    erank_ratio: Spread | None
    maj_gap: Spread | None
    cap: Spread | None
    toeplitz: Spread | None
    toeplitz_centred: Spread | None
    content: Spread | None
    position: Spread | None
    coupling: Spread | None
    gram_content: Spread | None
    gram_mixed: Spread | None
    gram_position: Spread | None
    gram_cross: Spread | None
    kernel_rho: Spread | None
    distance: Spread | None
    entropy: Spread | None
    on_previous: Spread | None
    on_next: Spread | None
    on_self: Spread | None
    on_first: Spread | None
    on_induction: Spread | None
    on_local: Spread | None
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
        """The median of a metric over the sequences."""
        found: Spread | None = getattr(self, metric)
        return None if found is None else found.median

    def score(self, pattern: str) -> float | None:
        """The median share of attention on a pattern."""
        return self.median(f"on_{pattern}")


@dataclass(frozen=True)
class Gap:
    """A metric that some heads lack, and why."""

    metric: str
    why: str
    heads: int


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceResult(Result):
    """A model on a text, head by head; with depth, also what its layers do to the tokens.

    `encoding` is the one that was put in, where it is not the model's own. `rebuilt` is the largest relative
    difference between the heads' outputs and those rebuilt from the content that was measured; `null_share` the
    gram_position that content alone would leave in the means; `patterns` names the heads above each of `thresholds`,
    the strongest first. `logits` are pictures of a few heads on the first sequence, and `attention` windows of it
    with heads' attention pair by pair. `depth`, with its rank correlations, and the runs `verified` with their
    `verdicts`, speak of the tokens that `depth_text` names. `stream` holds the tokens through depth as the
    model is, with positions off, and under other encodings.
    """

    kind = "trace"
    table = "heads"

    text: str
    sequences: int
    tokens: int
    encoding: str | None
    rebuilt: float
    thresholds: Mapping[str, float]
    patterns: Mapping[str, tuple[str, ...]]
    agreement: Agreement | None
    null_share: float | None
    gaps: tuple[Gap, ...]
    heads: tuple[HeadTrace, ...]
    logits: tuple[LogitPicture, ...] = ()
    attention: tuple[AttentionWindow, ...] = ()
    depth_text: str | None = None
    depth: tuple[LayerDepth, ...] = ()
    depth_correlations: tuple[RankCorrelation, ...] = ()
    verdicts: VerdictSummary | None = None
    verified: tuple[HeadRun, ...] = ()
    stream: tuple[Stream, ...] = ()

    def named(self, pattern: str) -> tuple[HeadTrace, ...]:
        """The heads named for a pattern, the strongest first."""
        return strongest(self.heads, pattern)


def strongest(heads: tuple[HeadTrace, ...], pattern: str) -> tuple[HeadTrace, ...]:
    """Those of the heads that are named for a pattern, the strongest first."""
    found = [each for each in heads if pattern in each.names]
    return tuple(sorted(found, key=lambda each: -(each.score(pattern) or 0.0)))
