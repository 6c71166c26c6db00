"""What the picture of a flow shows, in words: where tokens turn, whether they gather, how far they go."""

from __future__ import annotations

import math

from toposcope.dynamics.flow import Flow
from toposcope.dynamics.regime import Verdict

ALIKE = 0.99  # mean cosine of tokens that point one way
TURNED = 0.1  # the least change of the mean cosine that is told
RESIZED = 1.05  # the least ratio of norms that is told
GROWTH = (Verdict.NOT_CONVERGENT, Verdict.DIVERGES, Verdict.DIVERGES_ABOVE)


def gist(flow: Flow) -> str:
    """The change of direction, of clusters and of norms from start to end, as a sentence."""
    if flow.tokens == 1:
        return f"The token's {_resized(flow, 'norm_max') or 'norm hardly changes'}."
    turned, gathered, sizes = _turned(flow), _gathered(flow), _sizes(flow)
    moves = [each for each in (turned, gathered) if each]
    said = f"The {flow.tokens:,} tokens {' and '.join(moves)}" if moves else _unchanged(flow)
    return f"{said}; {sizes or 'the largest norm hardly changes'}."


def of_norms(flow: Flow) -> str | None:
    """What keeps a verdict of growth and a picture of tokens that gather from looking like a contradiction."""
    if flow.tokens == 1 or flow.verdict is None or flow.verdict.verdict not in GROWTH:
        return None
    cosines, clusters = _ends(flow, "cosine_mean"), _ends(flow, "clusters")
    if not (cosines[1] - cosines[0] >= TURNED or clusters[1] < clusters[0]):
        return None
    return "The verdict speaks of norms: tokens can gather and still go to infinity."


def _ends(flow: Flow, name: str) -> tuple[float, float]:
    """An observable at the start and at the end; NaN where it was not measured."""
    series = flow.observables.get(name)
    return (series[0], series[-1]) if series else (math.nan, math.nan)


def _turned(flow: Flow) -> str | None:
    first, last = _ends(flow, "cosine_mean")
    if math.isnan(first) or math.isnan(last):
        return None
    numbers = f"(mean cosine {_cosine(first)} to {_cosine(last)})"
    if last >= ALIKE > first:
        return f"turn into one direction {numbers}"
    if abs(last - first) < TURNED:
        return None
    return f"turn {'towards' if last > first else 'away from'} one another {numbers}"


def _gathered(flow: Flow) -> str | None:
    first, last = _ends(flow, "clusters")
    if math.isnan(first) or math.isnan(last) or first == last:
        return None
    verb = "gather in" if last < first else "spread over"
    return f"{verb} {_clusters(last)} ({int(first)} at the start)"


def _clusters(number: float) -> str:
    return "one cluster" if number == 1 else f"{int(number)} clusters"


def _unchanged(flow: Flow) -> str:
    """Of tokens whose clusters and mean cosine stay as they are."""
    clusters, cosine = _ends(flow, "clusters")[1], _ends(flow, "cosine_mean")[1]
    kept = [] if math.isnan(clusters) else [f"in {_clusters(clusters)}"]
    kept += [] if math.isnan(cosine) else [f"at a mean cosine of {_cosine(cosine)}"]
    return f"The {flow.tokens:,} tokens stay {', '.join(kept)}" if kept else f"{flow.tokens:,} tokens"


def _sizes(flow: Flow) -> str | None:
    """The largest norm, and the smallest where that goes another way."""
    largest, smallest = _resized(flow, "norm_max"), _resized(flow, "norm_min")
    told = f"the largest {largest}" if largest else None
    ways = [math.copysign(1, math.log(r)) if abs(math.log(r)) > math.log(RESIZED) else 0 for r in _ratios(flow)]
    if smallest and ways[0] != ways[1]:
        return f"{told or 'the largest norm hardly changes'}, the smallest {smallest.removeprefix('norm ')}"
    return told


def _ratios(flow: Flow) -> list[float]:
    found = []
    for name in ("norm_max", "norm_min"):
        first, last = _ends(flow, name)
        found.append(1.0 if not first > 0 else max(last / first, 5e-324))
    return found


def _resized(flow: Flow, name: str) -> str | None:
    """norm grows 248-fold, norm falls 14-fold, norm goes to 0; None where it hardly changes."""
    first, last = _ends(flow, name)
    if not first > 0 or math.isnan(last):
        return None
    if last == 0:
        return "norm goes to 0"
    ratio = last / first
    if 1 / RESIZED < ratio < RESIZED:
        return None
    return f"norm {'grows' if ratio > 1 else 'falls'} {_fold(max(ratio, 1 / ratio))}-fold"


def _fold(factor: float) -> str:
    return f"{factor:,.0f}" if 1000 <= factor < 1e6 else f"{factor:.3g}"


def _cosine(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"
