"""A flow in words: whether tokens turn, gather and grow; why; what is certified, and how firmly."""

from __future__ import annotations

import math

from toposcope.dynamics.flow import Flow, FlowResult, Theorem
from toposcope.dynamics.observables import CLUSTER_SHARE
from toposcope.dynamics.regime import Verdict
from toposcope.dynamics.theorems import in_words, theorem

ALIKE = 0.99  # mean cosine of tokens that point one way
TURNED = 0.1  # the least change of the mean cosine that is told
RESIZED = 1.05  # the least ratio of norms that is told
NEW = 0.5  # the most of the tokens that lay at the start where nearly all lie at the end, if that is told
GROWTH = (Verdict.NOT_CONVERGENT, Verdict.DIVERGES, Verdict.DIVERGES_ABOVE)


CLUSTERS = f"One cluster: tokens joined by steps of less than {100 * CLUSTER_SHARE:.0f} % of the cloud's size."


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
    return "Only the growth is certified; that tokens gather is what this run shows."


def seen(flow: Flow) -> str:
    """What the picture shows, and up to when."""
    unit = "" if moves(flow) == "V" else " (a residual block is a step of 1)"
    return f"{gist(flow).removesuffix('.')} by t = {flow.end:.3g}{unit}."


def why(result: FlowResult, flow: Flow) -> str | None:
    """How we read what is seen: a preset's reason, or which directions grow and whether tokens are there."""
    if result.why:
        return f"How we read it: {result.why}."
    found = flow.verdict
    if found is None or found.scope != "first_token" or found.verdict not in GROWTH or not found.n_pos:
        return None
    count = found.n_pos + (found.n_neg or 0) + (found.n_zero or 0)
    if count == 1:
        return None
    words = (
        f"{found.n_pos} of the {count} eigenvalues of {moves(flow)} have positive real part: these directions grow."
    )
    lead = flow.leading
    if lead is None or lead.share_at_start > NEW or lead.directions >= found.n_pos:
        return words
    who = "the one that grows fastest holds" if lead.directions == 1 else f"the {lead.directions} fastest hold"
    them = "it outgrows" if lead.directions == 1 else "they outgrow"
    return (
        f"{words} At the end {who} {_percent(lead.share_at_end)} of the tokens' squared norm "
        f"({_percent(lead.share_at_start)} at the start). How we read it: {them} the rest, and tokens line up along "
        f"{'it' if lead.directions == 1 else 'them'}."
    )


def certified(flow: Flow, *, short: bool = False) -> str:
    """What a theorem says of the system, by name, unless `short` with how it comes about."""
    found = flow.verdict
    if found is None:
        return "No theorem speaks of this system: what is seen is all there is."
    if found.rule is None:
        why_not = "" if found.statement == "no theorem applies" else f": {found.statement}"
        return f"{_sentence(found.verdict.meaning)}{why_not}."
    reason = "" if short else in_words(found.rule, moves(flow), found.scope)
    reason = f"{reason}. {_sentence(found.statement)}" if reason else found.statement
    said = f"{_sentence(theorem(found.rule, found.verdict))}: {reason}."
    if not found.exact:
        said += " Here this is outside the theorem's exact reach."
    if found.verdict is Verdict.NOT_CONVERGENT and found.scope == "first_token" and not short:
        said += " The verdict is 'not convergent'; 'diverges' is kept for growth from every start but one."
    return said


def firm(flow: Flow) -> str | None:
    """How much the weights may change before a verdict falls, and whether that covers the rounding of stored ones."""
    found = flow.verdict
    if found is None or found.rule is None or found.margin is None:
        return None
    most = _percent(found.margin)
    size = "its size" if weights(flow) == "V" else "their size"
    if found.rule[:2] in ("T3", "T4"):
        words = (
            f"W and W V^-1 stay definite while W and V change by less than {most} of their size, but one of the two "
            "must stay symmetric"
        )
    elif found.margin:
        words = f"any change of {weights(flow)} below {most} of {size} leaves it true"
    else:
        words = f"the smallest change of {weights(flow)} may undo it"
    return f"How firm: {words}.{_original(found)}"


def _original(found: Theorem) -> str:
    """Whether a verdict on stored weights holds for those before rounding."""
    if found.robust is None or found.storage_error is None:
        return ""
    size = f"about {_percent(found.storage_error)}"
    if found.robust:
        return f" These stored weights are rounded by less ({size}): the verdict survives that."
    if found.rule in ("T5", "T6"):
        return f" These stored weights are rounded by more ({size}): it may not hold for the original ones."
    return " These are weights as stored: it may not hold for those before rounding."


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share > 0.1 else f"{100 * share:.2g} %"


def moves(flow: Flow) -> str:
    """The matrix that moves tokens: two matrices of one's own have no O."""
    return "V" if flow.settings.layer is None and flow.settings.layers is None else "V O"


def weights(flow: Flow) -> str:
    """The weights whose relative change a margin speaks of."""
    rule = flow.verdict.rule if flow.verdict else None
    if rule not in ("T5", "T6"):
        return "W and V"
    return moves(flow).replace(" ", " and ")


def brief(result: FlowResult) -> list[str]:
    """A line for what was seen of each flow, and one for what is certified of them, or of each where that differs."""
    lines = [("Seen", flow.encoding, [seen(flow), why(result, flow)]) for flow in result.flows]
    for flow in result.flows:
        lines.append(("Theorem", flow.encoding, [certified(flow, short=True), of_norms(flow), firm(flow)]))
    several: dict[tuple[str, str], list[str]] = {}  # the flows of which the same is said
    for what, encoding, said in lines:
        several.setdefault((what, " ".join(filter(None, said))), []).append(encoding)
    named = len(result.flows) > 1
    return [
        f"{what}{', ' + ' and '.join(of) if named else ''}: {words[:1].lower()}{words[1:]}"
        for (what, words), of in several.items()
    ]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


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
    return f"{verb} {_clusters(last)} ({int(first)} at the start)"  # what counts as one: CLUSTERS


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
