"""Tokens through depth, the headline of `trace`: together or apart, where, by what, and what position changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.core.statistics import told_from_zero
from toposcope.models.tracing.result import TraceResult
from toposcope.models.tracing.stream import LEAST_TURN, MOST, OFF, OWN, WHAT, Mean, Phase, Stream, StreamState
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Paragraphs, Row, Summary, count

PARTS = {
    "attention": "attention",
    "mlp": "MLPs",
    "norm": "norms",
    "layer": "layers",
    "between": "what stands between",
}
PLACES = {"mlp": "MLP"}  # what a state stands after, where a table has a better word for it
NAMED = 3  # phases that the sentence names
BOUNDS = {"cosine": (-1.0, 1.0), "relative_dispersion": (0.0, 1.0), "effective_rank": (1.0, math.inf)}
MOSTLY = 2 / 3  # of a phase's change: 'most of it'
MOST_DIGITS = 5
ALONE_WORDS = "One head alone (flow) and the whole model with its MLPs (here) need not agree."
ALONE = 0.5  # share of all squared norms from which one token speaks for the cloud


def add_stream(result: TraceResult, page: Page, sentences: Sequence[str]) -> None:
    """Add the summary, tokens first and heads second, the tokens through depth beside it, and what else is known."""
    answer, *parts_said = stream_summary(result) or [""]
    said = Summary(tuple(filter(None, (answer, *sentences))))
    if not result.stream:
        page.add("Summary", said)
        return
    headline = _headline(result, page)
    page.add("Summary", Row((headline, said)))
    numbers, parts = _numbers(page, result.stream), _parts(page, result)
    words = Paragraphs(tuple(parts_said)) if parts_said else None
    page.add("Tokens through depth", words, numbers, parts, _others(headline.table, result.stream), full=True)
    how = Paragraphs((ALONE_WORDS, _how(result.stream[0])), soft=True)
    page.add("Tokens at every place", _every(page, result.stream), how, detail=True)


def _headline(result: TraceResult, page: Page) -> Chart:
    rows = [row for each in result.stream for row in _curve(each)]
    spec = charts.band(
        "layers", "cosine", "cosine_low", "cosine_high", colour="model", height=280, x_title="layers passed",
        y_title="mean cosine of tokens",
    )  # fmt: skip
    return Chart(
        "Do tokens move together?",
        "Mean cosine over pairs of tokens at the input and after each layer: up is together, down is apart. Bands: "
        "95% intervals over sequences, within -1 and 1.",
        page.rows("tokens through depth", rows),
        charts.in_colours(spec, "model", _colours(result.stream)),
        in_figure=True,
    )


def stream_summary(result: TraceResult) -> list[str]:
    """Together or apart, where, and what position changes; then which parts do it."""
    if not result.stream:
        return []
    own = result.stream[0]
    if any(state.cosine is None for state in own.states):
        return ["Whether tokens move together cannot be told: no sequence has two of them."]
    return [f"{_moves(own)}. {_position(result)}", *_by_parts(own)]


def largest_token(result: TraceResult) -> list[str]:
    """Where one token stands in the way of reading the measures other than the cosine."""
    states = result.stream[0].states if result.stream else ()
    alone = {each.layer: each.largest.mean for each in states if each.largest.mean > ALONE and each.layer is not None}
    if not alone:
        return []
    first, last = min(alone), max(alone)
    every = last - first + 1 == len(alone)
    return [
        f"In {_layers(first, last) if every else count(len(alone), 'layer')} one token holds up to "
        f"{max(alone.values()):.0%} of all squared norms: rank, dispersion and norm are mostly that token's; the "
        "cosine counts all tokens alike."
    ]


# ------------------------------------------------------------------ words
def _moves(own: Stream) -> str:
    """Together or apart from the input to the last layer, and the layers in which the cosine moves."""
    cosines = _cosines(own)
    if not own.phases:
        return (
            f"Tokens move neither together nor apart: their mean cosine stays between {min(cosines):.2f} and "
            f"{max(cosines):.2f}"
        )
    change = cosines[-1] - cosines[0]
    if abs(change) < LEAST_TURN:
        answer = "Tokens end about as close together as they began"
    else:
        answer = f"Tokens move {'together' if change > 0 else 'apart'} through the layers"
    said = [_phase(each, cosines, at == 0) for at, each in enumerate(own.phases[:NAMED])]
    more = len(own.phases) - NAMED
    last = own.phases[-1]
    if more > 0:
        said.append(f"then turns {count(more, 'time')} more, to {last.end:.2f} after layer {last.last}")
    if last.last + 1 < len(cosines) - 1 and f"{last.end:.2f}" != f"{cosines[-1]:.2f}":
        said.append(f"and goes back to {cosines[-1]:.2f} in {_layers(last.last + 1, len(cosines) - 2)}")
    return f"{answer}: the mean cosine between them {', '.join(said)}"


def _phase(phase: Phase, cosines: Sequence[float], begins: bool) -> str:
    """One way of the cosine: from where to where, and the few layers that hold most of it."""
    verb = "rises" if phase.move == "together" else "falls"
    start = f"{verb} from {phase.start:.2f} to" if begins else f"then {verb} to"
    where = "in" if phase.first == phase.last else "over"
    words = f"{start} {phase.end:.2f} {where} {_layers(phase.first, phase.last)}"
    first, last = steepest(cosines, phase)
    if 2 * (last - first + 1) > phase.last - phase.first + 1:
        return words
    return f"{words} (most of it in {_layers(first, last)}: {cosines[first]:.2f} to {cosines[last + 1]:.2f})"


def steepest(cosines: Sequence[float], phase: Phase) -> tuple[int, int]:
    """The fewest consecutive layers of a phase that hold `MOSTLY` of its change; of equally few those with most."""
    sign = 1 if phase.end > phase.start else -1
    least = MOSTLY * abs(phase.end - phase.start)
    for size in range(1, phase.last - phase.first + 1):
        changes = {
            first: sign * (cosines[first + size] - cosines[first])
            for first in range(phase.first, phase.last - size + 2)
        }
        best = max(changes, key=changes.__getitem__)
        if changes[best] >= least:
            return best, best + size - 1
    return phase.first, phase.last


def _by_parts(own: Stream) -> list[str]:
    """What each kind of part adds, over all layers; layers that were not split have no parts."""
    cosines = _cosines(own)
    did = {words: total for part, words in PARTS.items() if (total := own.total(part)) is not None}  # type: ignore[arg-type]
    said = []
    if set(did) - {PARTS["layer"]}:
        (first, one), *others = did.items()
        parts = [f"{first} {_adds(first)} {one:+.2f}", *(f"{words} {total:+.2f}" for words, total in others)]
        said.append(f"From {cosines[0]:.2f} at the input to {cosines[-1]:.2f} after the last layer {_listed(parts)}")
    if own.final is not None and own.final.cosine is not None and own.final.cosine_change is not None:
        change, end = own.final.cosine_change.mean, own.final.cosine.mean
        said.append(f"{'then the' if said else 'The'} final norm adds {change:+.2f}, to {end:.2f}")
    return [f"{'; '.join(said)}."] if said else []


def _adds(part: str) -> str:
    return "adds" if part in (PARTS["attention"], PARTS["between"]) else "add"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _layers(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def _position(result: TraceResult) -> str:
    """What position changes in the end; where that cannot be told, the place at which it changes most."""
    off = next((each for each in result.stream if each.encoding == OFF), None)
    if off is None:
        missing = any(each.what == f"{WHAT}, positions off" for each in result.skipped)
        return (
            "What position changes could not be measured."
            if missing
            else "There is no positional encoding to switch off."
        )
    last, own = off.after_layers[-1], result.stream[0]
    end, difference = last.cosine, last.difference
    if end is None or difference is None:
        return "What position changes could not be measured."
    cosines = _cosines(own)
    instead = f"{end.mean:.2f} instead of {cosines[-1]:.2f}"
    if difference.half_width is None:
        return (
            f"Without position it ends at {instead} ({difference.mean:+.2f} on one sequence, which has no interval)."
        )
    if told_from_zero(difference.mean, difference.half_width):
        little = " slightly" if abs(difference.mean) < LEAST_TURN else ""
        change = cosines[-1] - cosines[0]
        closer = difference.mean > 0
        still = " still" if abs(change) >= LEAST_TURN and closer == (change > 0) else ""
        move = ("move" if still else "end") + f"{little} {'closer' if closer else 'farther apart'}{still}"
        return f"Without position they would {move}: {instead} ({_with_interval(difference)})."
    words = f"Without position it ends at {instead} ({_with_interval(difference)}), which may be no change"
    told = [each for each in off.after_layers if _told(each)]
    if not told:
        return f"{words}."
    most = max(told, key=lambda each: abs(each.difference.mean) if each.difference else 0.0)
    where = "at the input" if most.layer is None else f"after layer {most.layer}"
    return f"{words}, but {where} it differs by {_with_interval(most.difference)}."


def _told(state: StreamState) -> bool:
    return state.difference is not None and told_from_zero(state.difference.mean, state.difference.half_width)


def _with_interval(mean: Mean | None) -> str:
    if mean is None:
        return "–"
    if mean.half_width is None:
        return f"{mean.mean:+.2f}"
    digits = 2
    if told_from_zero(mean.mean, mean.half_width):  # few digits may hide that 0 lies outside
        while digits < MOST_DIGITS and f"{abs(mean.mean):.{digits}f}" == f"{mean.half_width:.{digits}f}":
            digits += 1
    return f"{round(mean.mean, digits) + 0.0:+.{digits}f} ± {mean.half_width:.{digits}f}"


def _how(own: Stream) -> str:
    built = {
        "sequential": "Attention, then the MLP, add to the stream; norms stand inside these branches.",
        "parallel": "Attention and MLP read the same state and add to it together; attention is counted first.",
        "post-norm": "A norm stands on the stream after each addition.",
    }
    words = " ".join(words for name, words in built.items() if name in own.order)
    if "whole" in own.order:
        words += " Layers that do not add up from an attention and an MLP are taken whole."
    cut = f" Of each sequence the first {MOST} tokens are followed." if own.tokens == MOST else ""
    return f"{words.strip()} Found by running a few tokens and adding up what modules hand on.{cut}"


# ------------------------------------------------------------------ tables and charts
def _label(stream: Stream) -> str:
    """What the model ran under, as short as it was asked for."""
    return stream.title if stream.encoding in (OWN, OFF) else stream.encoding


def _cosines(stream: Stream) -> list[float]:
    return [each.cosine.mean for each in stream.after_layers if each.cosine is not None]


def _curve(stream: Stream) -> list[dict[str, Any]]:
    """The input and the state after each layer, with the ends of their intervals."""
    rows = []
    for passed, state in enumerate(stream.after_layers):
        row: dict[str, Any] = {"model": _label(stream), "layers": passed}
        for name in ("cosine", "effective_rank", "dispersion", "relative_dispersion", "norm"):
            mean: Mean | None = getattr(state, name)
            if mean is not None:
                low, high = _within_bounds(name, mean)
                row |= {name: mean.mean, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return rows


def _within_bounds(name: str, mean: Mean) -> tuple[float, float]:
    """The ends of an interval, which of few sequences is wide, as far as the measure can be."""
    least, most = BOUNDS.get(name, (0.0, math.inf))
    half = mean.half_width or 0.0
    return max(mean.mean - half, least), min(mean.mean + half, most)


def _colours(streams: Sequence[Stream]) -> Mapping[str, str]:
    return charts.palette([_label(each) for each in streams])


def _others(curves: str, streams: Sequence[Stream]) -> Row:
    """The other measures of the same clouds."""
    colours = _colours(streams)

    def chart(name: str, title: str, sentence: str, *, log_y: bool = False) -> Chart:
        if log_y:
            spec = charts.line("layers", name, colour="model", log_y=True, x_title="layers passed")
        else:
            spec = charts.band("layers", name, f"{name}_low", f"{name}_high", colour="model", x_title="layers passed")
        return Chart(title, sentence, curves, charts.in_colours(spec, "model", colours))

    return Row((
        chart("effective_rank", "Effective rank", "How many directions the tokens fill."),
        chart("relative_dispersion", "Relative dispersion", "Distance from the mean token over the norm (rms)."),
        chart("dispersion", "Dispersion", "Root mean square distance from the mean token.", log_y=True),
        chart("norm", "Norm", "Root mean square norm of the tokens.", log_y=True),
    ))  # fmt: skip


def _parts(page: Page, result: TraceResult) -> Chart:
    """What each part of each layer did to the cosine; with `depth`, what the flow of the weights would do."""
    own = result.stream[0]
    rows: dict[tuple[int, str], float] = {}
    for state in own.states:
        if state.layer is not None and state.cosine_change is not None:
            key = (state.layer, PARTS[state.part])
            rows[key] = rows.get(key, 0.0) + state.cosine_change.mean
    listed = [{"layer": layer, "part": part, "change": change} for (layer, part), change in rows.items()]
    words = "Change of the mean cosine by each part of a layer: above 0 it moves tokens together."
    flow = [each for each in result.depth if each.flow is not None]
    if flow:
        words += f" The flow is one unit of time under the layer's attention, on {result.depth_text}."
        listed += [
            {"layer": each.layer, "part": "flow", "change": each.flow.cosine_change}
            for each in flow
            if each.flow is not None
        ]
    spec = charts.line("layer", "change", colour="part", zero=True, points=True, y_title="change of mean cosine")
    there = [part for part in (*PARTS.values(), "flow") if any(row["part"] == part for row in listed)]
    spec = charts.in_colours(spec, "part", charts.palette(there))
    return Chart("Which part moves them?", words, page.rows("parts of layers", listed), spec, in_figure=True)


def _numbers(page: Page, streams: Sequence[Stream]) -> Listing:
    rows = []
    for each in streams:
        layers, cosines = each.after_layers, _cosines(each)
        rows.append(
            {
                "under": "off" if each.encoding == OFF else _label(each),
                "first": cosines[0] if cosines else None,
                "last": cosines[-1] if cosines else None,
                "difference": None if layers[-1].difference is None else _with_interval(layers[-1].difference),
                "final": None if each.final is None or (done := each.final.cosine_change) is None else done.mean,
                **{part: each.total(part) for part in PARTS},  # type: ignore[arg-type]
                "rank_first": layers[0].effective_rank.mean,
                "rank_last": layers[-1].effective_rank.mean,
            }
        )
    there = [part for part in PARTS if any(row[part] is not None for row in rows)]
    columns = [
        Column("under", "positions", "plain"), Column("first", "cos in", ".2f"), Column("last", "out", ".2f"),
        Column("difference", "change", "plain"), *(Column(part, PARTS[part], "+.2f") for part in there),
        Column("final", "final norm", "+.2f"), Column("rank_first", "rank in", ".0f"),
        Column("rank_last", "out", ".0f"),
    ]  # fmt: skip
    if all(row["final"] is None for row in rows):
        columns = [each for each in columns if each.key != "final"]
    words = (
        "Mean cosine at the input and after the last layer; change: from the model as it is, with the 95% interval "
        "over sequences; by how much each part changed it in all layers. Rank: how many directions the tokens fill "
        "(effective rank; fewer: they are more alike)."
    )
    brief = tuple(each.key for each in columns if each.key != "final")
    return Listing("In and out", words, page.rows("in and out", rows), tuple(columns), top=16, brief=brief)


def _every(page: Page, streams: Sequence[Stream]) -> Listing:
    rows = [
        {
            "under": _label(stream),
            "layer": state.layer,
            "part": PLACES.get(state.part, state.part),
            "cosine": None if state.cosine is None else state.cosine.mean,
            "cosine_change": None if state.cosine_change is None else _with_interval(state.cosine_change),
            "difference": None if state.difference is None else _with_interval(state.difference),
            **{
                name: getattr(state, name).mean
                for name in ("effective_rank", "dispersion", "relative_dispersion", "norm", "largest")
            },
        }
        for stream in streams
        for state in stream.states
    ]
    columns = (
        Column("under", "positions", "plain"), Column("layer", "layer"), Column("part", "after", "plain"),
        Column("cosine", "cosine", ".3f"), Column("cosine_change", "by this part", "plain"),
        Column("difference", "from as it is", "plain"), Column("effective_rank", "rank", ".1f"),
        Column("dispersion", "dispersion", ".4g"), Column("relative_dispersion", "relative", ".3f"),
        Column("norm", "norm", ".4g"), Column("largest", "largest token", ".2f"),
    )  # fmt: skip
    words = "Means over sequences, at the input and after every part that acts on the stream."
    return Listing("Every place", words, page.rows("places", rows), columns, folded=True)
