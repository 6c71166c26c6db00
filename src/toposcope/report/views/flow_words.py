"""A flow in words: whether tokens turn, gather and grow; why; what is certified, and for which weights."""

from __future__ import annotations

import math

from toposcope.dynamics.agreement import fold
from toposcope.dynamics.flow import Flow, FlowResult
from toposcope.dynamics.observables import CLUSTER_SHARE
from toposcope.dynamics.regime import Verdict
from toposcope.dynamics.sources import SINGULAR
from toposcope.dynamics.theorems import in_words, theorem
from toposcope.dynamics.trajectory import Status
from toposcope.report.blocks import Command
from toposcope.report.commands import command, loss_line
from toposcope.report.verdicts import word
from toposcope.report.views.flow_position import RESIZED, TURNED, cosine_words, label

ALIKE = 0.99  # mean cosine of tokens that point one way
MERGED = 0.9  # the most clusters at the end over those at the start, or the other way, if that is told
FAR = 3  # rounding over margin from which on it is far more
NEW = 0.5  # the most of the tokens that lay at the start where nearly all lie at the end, if that is told
GROWTH = (Verdict.NOT_CONVERGENT, Verdict.DIVERGES, Verdict.DIVERGES_ABOVE)
DECIDED_BY_V = ("T5", "T6")  # rules whose margin may be set against the rounding of stored weights
CLUSTERS = (
    f"One cluster: tokens joined by steps of less than {100 * CLUSTER_SHARE:.0f}% of the tokens' RMS norm, or of "
    "that at the start where it was larger."
)
ENDED = {  # {t}: the time with its unit
    Status.HORIZON: "Still moving at the end, {t}.",
    Status.CONVERGED: "Within a millionth of the limit at {t}.",
    Status.GREW: "The run ends at this size (--growth-cap), {t}.",
    Status.AT_REST: "At rest at the end, not at 0, {t}.",
    Status.STIFF: "Followed to {t}, not to the horizon {horizon:.3g}: attention jumps from token to token (stiff).",
    Status.EXHAUSTED: (
        "Followed to {t}, not to the horizon {horizon:.3g}: {most} evaluations are used up, --max-evaluations {more} "
        "goes on."
    ),
}
HANDLED = {"on": "applied all the time", "start": "applied once, at the start", "off": "left out"}
MEANINGS = {  # of what is measured, by its name in `OBSERVABLES`
    "norm_min": "of the shortest token",
    "norm_median": "half of the tokens are shorter",
    "norm_max": "of the longest token",
    "distance_mean": "over pairs of tokens",
    "dispersion": "root mean square distance from the mean token",
    "cosine_mean": "over pairs: 1 is one direction for all",
    "effective_rank": "how many directions the tokens fill",
    "clusters": f"groups with gaps below {100 * CLUSTER_SHARE:.0f}% of the RMS norm",
    "attention_entropy": "in nats: 0 is attention to one token",
    "log_energy": "log sum exp(logit): falls in Thm 3b, rises in 4b",
    "pair_form_min": "squared difference of a pair, as Thm 1 weighs it",
    "pair_form_mean": "the same, over all pairs",
    "pair_form_max": "the same, where it is largest",
}
LETTERS = "V O: value and output weights, W = Q^T K: query and key weights"


def gist(flow: Flow) -> str:
    """The change of direction, of clusters and of norms from start to end, as a sentence."""
    if flow.tokens == 1:
        return f"The token's {_resized(flow, 'norm_max') or 'norm hardly changes'}."
    turned, gathered, sizes = _turned(flow), _gathered(flow), _sizes(flow)
    moves = [each for each in (turned, gathered) if each]
    said = f"The {flow.tokens:,} tokens {' and '.join(moves)}" if moves else _unchanged(flow)
    return f"{said}{' while' if _apart(flow) else ';'} {sizes or 'the largest norm hardly changes'}."


def of_norms(flow: Flow) -> str | None:
    """What keeps a verdict of growth and a picture of tokens that gather from looking like a contradiction."""
    if flow.tokens == 1 or flow.verdict is None or flow.verdict.verdict not in GROWTH:
        return None
    cosines, clusters = _ends(flow, "cosine_mean"), _ends(flow, "clusters")
    gathered = clusters[1] <= MERGED * clusters[0]
    if not (cosines[1] - cosines[0] >= TURNED or gathered):
        return None
    what = "gather" if gathered else "turn together"
    alone = flow.verdict.scope == "first_token"
    said = "Its norm grows without bound" if alone else "The theorem speaks of norms"
    return f"{said}; that the tokens {what} is only seen."


def seen(flow: Flow) -> str:
    """What the picture shows, how the run ended, and when."""
    used = flow.settings
    more = 2 * used.max_evaluations
    ended = ENDED[flow.status].format(
        t=f"t = {flow.end:.3g}{_unit(flow)}", horizon=used.horizon, most=used.max_evaluations, more=more
    )
    return f"{gist(flow)} {ended}"


def _unit(flow: Flow) -> str:
    """What a step of 1 is in the model."""
    used = flow.settings
    if used.layers is not None:
        return " (1: one layer)"
    if used.layer is None:
        return ""
    return f" (1: the {'layer' if used.head is None else 'head'} applied once)"


def setup(result: FlowResult) -> str:
    """What flows: which part of which model, which tokens, and with which encoding where that is one."""
    flow, told = result.flows[0], result.sentence.rstrip(".")
    used = flow.settings
    around = [label(flow)] if len(result.flows) == 1 else []
    if used.causal is not None and (not used.causal or not result.provenance.subjects):
        around.append("causal mask" if used.causal else "no mask")
    if not result.provenance.subjects:
        preset = result.provenance.options.get("preset")
        told = f"Preset {preset}: {told}" if preset else told
        if preset and _changed(result):
            term = [f"diagonal term {used.diagonal:.3g}"] if used.diagonal else []
            return f"{told}. Here that is changed: {', '.join([*around, *term])}."
        around = [each for each in around if each.lower() not in told.lower()]
        return ". ".join(filter(None, [told, _sentence(", ".join(around))])) + "."
    around = [each for each in around if each.lower() not in told.lower()]
    alone = " acting alone, again and again" if used.head is not None else ""
    moved = written(flow)
    where = f", in the {moved} of {used.width} dimensions that it writes" if moved else ""
    return f"{_sentence(flow.title)}{alone}: {told}{where}; {', '.join(around)}.".replace("; .", ".")


def written(flow: Flow) -> int | None:
    """How many dimensions a head can move, where only these are followed."""
    found = flow.verdict
    if flow.settings.head is None or found is None or found.n_pos is None or SINGULAR in flow.notes:
        return None
    return found.n_pos + (found.n_neg or 0) + (found.n_zero or 0)


def _changed(result: FlowResult) -> bool:
    """Whether a preset has another mask, encoding or diagonal term than its own."""
    given = result.provenance.options
    diagonal = result.flows[0].settings.diagonal  # no preset has one of its own
    return given.get("causal") is not None or bool(given.get("encoding")) or bool(diagonal)


def next_steps(result: FlowResult) -> list[Command]:
    """What to look at next: a change of a preset, a real head, the whole model."""
    if not result.provenance.subjects:
        preset = result.provenance.options.get("preset")
        if preset is None:
            return []
        tries = [
            Command(f"{_sentence(effect)}:", f"toposcope flow --preset {preset} {option}")
            for option, effect in result.suggestions.items()
            if not _changed(result)
        ]
        return tries or [Command("A head of a real model:", "toposcope flow smollm2 --head 2.1")]
    read_as = any(
        result.provenance.options.get(name) not in (None, "", [], ()) for name in ("family", "num_heads", "adapter")
    )
    if read_as or loss_line(result) is None:  # it could not be run, or not as it was read
        return []
    return [Command("In the whole model, where it may be the other way round:", " ".join(command(result, "trace")))]


def why(result: FlowResult, flow: Flow) -> str | None:
    """How we read what is seen: a preset's reason, or which directions grow and whether tokens are there."""
    if result.why:
        return f"{result.why}."
    found = flow.verdict
    if found is None or found.scope != "first_token" or found.verdict not in GROWTH or not found.n_pos:
        return None
    count = found.n_pos + (found.n_neg or 0) + (found.n_zero or 0)
    if count == 1:
        return None
    words = f"{found.n_pos} of the {count} directions that {moves(flow)} moves grow (Re eig > 0)."
    lead = flow.leading
    if lead is None or lead.share_at_start > NEW or lead.directions >= found.n_pos:
        return words if found.n_pos < count else None  # of all the theorem says so
    who = "the fastest holds" if lead.directions == 1 else f"the {lead.directions} fastest hold"
    return (
        f"{words.removesuffix('.')}; {who} {_percent(lead.share_at_end)} of the tokens' squared norm at the end, "
        f"{_percent(lead.share_at_start)} at the start."
    )


def certified(flow: Flow) -> str:
    """What a theorem says of the system: the verdict, by which theorem, and the reason."""
    found = flow.verdict
    if found is None:
        return "none speaks of this system; what is seen is all there is."
    if found.rule is None:
        said = "none decides" if found.verdict is Verdict.INDETERMINATE else found.verdict.meaning
        return f"{said}{'' if found.statement == 'no theorem applies' else f': {found.statement}'}."
    said = f"{theorem(found.rule, found.verdict, found.scope)}: {found.statement}."
    if found.verdict not in GROWTH:  # else the name says so, and 'not convergent' beside tokens that gather puzzles
        said = f"{word(found.verdict)}, by {said}"
    return said if found.exact else f"{said} Here this is outside the theorem's exact reach."


def scope(flow: Flow) -> str:
    """Of which weights a verdict speaks, where that is not all that a reader may think of."""
    found = flow.verdict
    stored = found is not None and found.rule is not None and found.robust is False
    return "for the stored weights only" if stored else ""


def theorem_line(flow: Flow) -> str:
    """The verdict, whether it is to be seen yet, and how firm it is, behind the weights it speaks of."""
    found = flow.verdict
    margin = firm(flow) if found is not None and found.rule in DECIDED_BY_V else None
    unseen = f"{_sentence(flow.observed)}." if flow.agreement in ("not_yet", "contradicts") else None
    return " ".join(filter(None, [certified(flow), of_norms(flow), margin, unseen]))


def mechanism(flow: Flow) -> str | None:
    """How a theorem comes about, where its statement does not say that too."""
    found = flow.verdict
    said = in_words(found.rule, moves(flow), found.scope) if found is not None and found.rule else ""
    return f"{_sentence(said)}." if said else None


def badge(flow: Flow) -> str:
    """The verdict of a flow as a heading: who grows, from which starts."""
    found = flow.verdict
    if found is None:
        return "No theorem speaks of this"
    said = _sentence(word(found.verdict))
    if found.rule == "T5" and found.verdict in GROWTH:
        who = "First token grows" if found.scope == "first_token" else "Tokens at one place grow"
        starts = "almost every start" if found.verdict is Verdict.NOT_CONVERGENT else "every start but one"
        said = f"{who} from {starts} ({word(found.verdict)})"
    return f"{said}, by {theorem(found.rule, found.verdict, found.scope)}" if found.rule else said


def firm(flow: Flow) -> str | None:
    """How much the weights may change before a verdict falls, and whether that covers the rounding of stored ones."""
    found = flow.verdict
    if found is None or found.rule is None or found.margin is None:
        return None
    most = _percent(found.margin)
    if found.rule not in DECIDED_BY_V:
        unknown = " Whether it survives the rounding of the stored weights is not known." * (found.robust is not None)
        if found.rule[:2] not in ("T3", "T4"):
            return f"The verdict survives changes of {weights(flow)} below {most} of their size.{unknown}"
        return (
            f"W and W V^-1 stay definite while W and V change by less than {most} of their size. One of these two "
            f"must also stay symmetric, which almost any change undoes.{unknown}"
        )
    if found.robust is None or found.storage_error is None:
        size = "its size" if weights(flow) == "V" else "their size"
        if not found.margin:
            return f"The smallest change of {weights(flow)} may undo it."
        return f"The verdict survives changes of {weights(flow)} below {most} of {size}."
    changed = f"rounding may have changed {weights(flow)} by about {_percent(found.storage_error)}"
    if found.robust:
        return f"The verdict survives rounding: {changed}, and it stands up to {most}."
    far = ", far less" if found.storage_error > FAR * found.margin else ""
    return f"Not certified for the weights before rounding: {changed}; the verdict is sure up to {most}{far}."


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%" if share > 0.1 else f"{100 * share:.2g}%"


def moves(flow: Flow) -> str:
    """The matrix that moves tokens: two matrices of one's own have no O."""
    return "V" if flow.settings.layer is None and flow.settings.layers is None else "V O"


def weights(flow: Flow) -> str:
    """The weights whose relative change a margin speaks of."""
    rule = flow.verdict.rule if flow.verdict else None
    if rule not in ("T5", "T6"):
        return "W and V"
    return moves(flow).replace(" ", " and ")


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
    numbers = f"(mean cosine {cosine_words(first)} to {cosine_words(last)})"
    if last >= ALIKE > first:
        return f"turn into one direction {numbers}"
    if abs(last - first) < TURNED:
        return None
    return f"turn {'towards' if last > first else 'away from'} one another {numbers}"


def _gathered(flow: Flow) -> str | None:
    first, last = _ends(flow, "clusters")
    if math.isnan(first) or math.isnan(last) or MERGED * first < last < first / MERGED:
        return None
    verb = "gather in" if last < first else "spread over"
    near = ", where some are near one another" if 1 < first < flow.tokens else ""
    return f"{verb} {_clusters(last)} ({int(first)} at the start{near})"


def _apart(flow: Flow) -> bool:
    """Whether tokens are in fewer clusters though farther from one another: what counts as near grows with norms."""
    (first, last), (before, after) = _ends(flow, "clusters"), _ends(flow, "distance_mean")
    small, large = _ends(flow, "norm_max")
    return last < first and min(before, small) > 0 and after > RESIZED * before and large > RESIZED * small


def _clusters(number: float) -> str:
    return "one cluster" if number == 1 else f"{int(number)} clusters"


def _unchanged(flow: Flow) -> str:
    """Of tokens whose clusters and mean cosine stay as they are."""
    clusters, cosine = _ends(flow, "clusters")[1], _ends(flow, "cosine_mean")[1]
    kept = [] if math.isnan(clusters) else [f"in {_clusters(clusters)}"]
    kept += [] if math.isnan(cosine) else [f"at a mean cosine of {cosine_words(cosine)}"]
    return f"The {flow.tokens:,} tokens stay {', '.join(kept)}" if kept else f"{flow.tokens:,} tokens"


def _sizes(flow: Flow) -> str | None:
    """The largest norm, and the smallest where that goes another way."""
    largest, smallest = _resized(flow, "norm_max"), _resized(flow, "norm_min")
    told = f"the largest {largest}" if largest else None
    if told and _apart(flow):
        (before, after), (small, large) = _ends(flow, "distance_mean"), _ends(flow, "norm_max")
        less = after / before < large / small
        small_beside = ", but less, so they are small beside the norms" if less else ""
        told += f"; distances grow too{small_beside} ({fold(after / before)}-fold)"
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
    return f"norm {'grows' if ratio > 1 else 'falls'} {fold(max(ratio, 1 / ratio))}-fold"
