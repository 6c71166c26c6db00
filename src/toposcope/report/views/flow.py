"""The view of `flow`: what a theorem says, what the run did, and every observable from start to end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from toposcope.dynamics.agreement import fold
from toposcope.dynamics.flow import Flow, FlowResult
from toposcope.dynamics.observables import CLUSTER_SHARE, OBSERVABLES
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Pairs, Paragraphs, Particles, Row, Summary, shown
from toposcope.report.views.flow_position import label, position_line
from toposcope.report.views.flow_words import (
    CLUSTERS,
    DECIDED_BY_V,
    HANDLED,
    LETTERS,
    MEANINGS,
    badge,
    firm,
    mechanism,
    moves,
    next_steps,
    scope,
    seen,
    setup,
    theorem_line,
    weights,
    why,
    written,
)

ACROSS = 4  # flows side by side in one table
DRAWN = 32  # tokens whose paths are drawn
WITHOUT = "without position"
NORMS = {"norm_min": "smallest", "norm_median": "median", "norm_max": "largest"}
SIGNED = ("cosine_mean",)  # what may be 0 or below
PAIRED = {  # curves over pairs of tokens: title, sentence, name of the axis
    "distance_mean": ("Distance between tokens", "Mean over pairs of tokens", "distance"),
    "cosine_mean": ("Cosine between tokens", "Mean over pairs: 1 is one direction for all", "cosine"),
    "clusters": (
        "Clusters",
        f"Groups of tokens with gaps below {100 * CLUSTER_SHARE:.0f}% of the RMS norm",
        "clusters",
    ),
}


def view(result: FlowResult, page: Page) -> None:
    """Add the sections of a flow, or of several beside one another."""
    page.title = page.title or _title(result)
    flows, several = result.flows, len(result.flows) > 1
    if several:
        page.facts += [(str(flows[0].tokens), "tokens"), (str(len(flows)), "encodings")]
        page.add("Summary", Summary((setup(result), *(_in_short(flow) for flow in flows))))
        page.add("Side by side", *_side_by_side(page, result.runs))
    else:
        page.add("Summary", Row((_motion(flows[0]), Summary((setup(result), *_summary(result, flows[0]))))))
        behind = tuple(_behind(flows[0]))
        page.add("Theorem and run", Paragraphs(behind) if behind else None, full=True)
    for flow in flows:
        _one(page, result, flow, flow.encoding if several else "From start to end", several)
    notes = tuple(dict.fromkeys(f"{_sentence(note)}." for flow in flows for note in _notes(flow)))
    terms = tuple(dict.fromkeys(words for flow in flows for words in _terms(flow)))
    if terms or notes:
        page.add("Notes", Paragraphs((*terms, *notes), soft=True))
    steps = next_steps(result)
    if steps:
        page.add("Next", *steps)


def view_several(results: Sequence[FlowResult], page: Page) -> None:
    """Add the sections of several results; none of them names the page."""
    title = page.title
    for result in results:
        view(result, page)
    page.title = title


def _title(result: FlowResult) -> str:
    """What flows, and in which model."""
    used, subjects = result.flows[0].settings, result.provenance.subjects
    if not subjects:
        return f"Flow of {'preset ' if result.provenance.options.get('preset') else ''}{result.title}"
    place = "all layers" if used.layer is None else f"layer {used.layer}"
    if used.head is not None:
        place = f"head {used.layer}.{used.head}"
    return f"Flow of {place}, {subjects[0].name}"


# ------------------------------------------------------------------ sentences
def _summary(result: FlowResult, flow: Flow) -> list[str]:
    """What was seen, why as we read it, and what is certified."""
    reason = why(result, flow)
    of = ", ".join(filter(None, ["Theorem", scope(flow)]))
    position = position_line(flow)
    said = [
        seen(flow),
        f"Position: {position}" if position else None,
        f"Likely reason: {reason}" if reason else None,
        f"{of}: {theorem_line(flow)}",
    ]
    return [*filter(None, said)]


def _behind(flow: Flow) -> list[str]:
    """How the theorem comes about, how firm it is where that is not short, and the run beside it."""
    found = flow.verdict
    short = found is None or found.rule in DECIDED_BY_V  # then the summary has it
    said = [mechanism(flow), None if short else firm(flow)]
    if flow.agreement == "agrees":
        said.append(f"Run and theorem agree: {flow.observed}.")
    events = [event for event in flow.events if event.name != flow.status]
    return [*filter(None, said), *(f"At t = {event.time:.4g}: {event.words}." for event in events)]


def _terms(flow: Flow) -> list[str]:
    """What the words of the sentences mean."""
    terms = []
    if flow.tokens > 1:
        terms.append(CLUSTERS)
    if moves(flow) != "V":
        terms.append(f"{LETTERS}.")
    if flow.settings.head is not None:
        terms.append("This is one head alone; the whole model with its MLPs need not do the same.")
    return terms


def _notes(flow: Flow) -> list[str]:
    """The notes of a flow, without the dimensions that the first sentence has named."""
    return [note for note in flow.notes if not (written(flow) and note.startswith("shown is the part"))]


def _in_short(flow: Flow) -> str:
    """One of several flows: its encoding, what was seen, what position changes."""
    position = position_line(flow)
    told = f"{flow.encoding} ({flow.settings.encoding}): {seen(flow)}"
    return f"{told} Position: {position}" if position else told


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _words(code: str | None) -> str:
    return _sentence(str(code).replace("_", " "))


# ------------------------------------------------------------------ one flow
def _one(page: Page, result: FlowResult, flow: Flow, heading: str, several: bool) -> None:
    said = Row((_motion(flow), Summary((*_summary(result, flow), *_behind(flow))))) if several else None
    curves = [_paths(page, flow, f"Paths: {flow.encoding}" if several else "Paths", _plane(flow))]
    without = None if several else result.without_position  # several have their curves side by side
    curves += _curves(page, flow, without, in_figure=not several)
    rows = _observables(page, flow, without)
    page.add(heading, said, _facts(flow), Row(tuple(curves)), rows, detail=several, full=not several)


def _motion(flow: Flow) -> Particles:
    scale = " Below: that norm as a multiple of the start's." if flow.trajectory.relative else ""
    words = f"Each dot is a token in {_plane(flow)}.{scale} Colour runs from the first token to the last."
    return Particles("Tokens in motion", words, flow.trajectory.times, flow.trajectory.xy, _growth(flow))


def _growth(flow: Flow) -> tuple[float, ...]:
    """The largest norm over that at the start, at the moments of the picture."""
    times, sizes = flow.observables["time"], flow.observables["norm_max"]
    if not all(0 < size < math.inf for size in sizes):
        return ()
    logs = np.interp(flow.trajectory.times, times, np.log(sizes)) - math.log(sizes[0])
    return tuple(float(f"{factor:.4g}") for factor in np.exp(np.minimum(logs, 700.0)))


def _plane(flow: Flow) -> str:
    """The plane that a picture shows."""
    moving, where = flow.trajectory, "the plane they lie in"
    if moving.share <= 0.9995:
        where = f"the two directions with most of the squared norm over the whole run ({100 * moving.share:.0f}%)"
    return where + (", rescaled at each moment by the largest norm" if moving.relative else "")


def _facts(flow: Flow) -> Pairs:
    """The numbers of the verdict and of the run."""
    used, found = flow.settings, flow.verdict
    mask = {None: None, True: "causal", False: "none"}[used.causal]
    margin = spectrum = None
    if found and found.margin is not None:
        kept = ", below which W and W V^-1 stay definite" if found.rule and found.rule[:2] in ("T3", "T4") else ""
        margin = f"{shown(found.margin, 'percent')} relative change of {weights(flow)}{kept}"
    if found and found.alpha is not None:
        low, high = shown(found.omega), shown(found.alpha)
        spectrum = low if low == high else f"{low} to {high}"
    items = [
        ("encoding", used.encoding + (f" ({used.absolute})" if used.absolute else "")),
        ("attention mask", mask),
        ("added diagonal", shown(used.diagonal) if used.diagonal else None),
        ("norms", HANDLED.get(used.norms or "", used.norms)),
        ("tokens", str(flow.tokens)),
        ("integration time", f"{flow.end:.3g}"),
        ("margin", margin),
        (f"Re eig({moves(flow)})", spectrum),
        ("log growth", f"{flow.log_growth:.3g}; at the end {flow.growth_rate:.3g} per unit of time"),
        ("evaluations", f"{flow.evaluations:,} in {flow.accepted_steps:,} steps, {flow.rejected_steps} rejected"),
    ]
    return Pairs(
        badge(flow), tuple((name, value) for name, value in items if value), dot=found.verdict if found else None
    )


def _observables(page: Page, flow: Flow, without: Flow | None) -> Listing:
    rows = []
    for each in OBSERVABLES:
        if each.name in flow.observables:
            first, last = flow.observables[each.name][0], flow.observables[each.name][-1]
            change = _change(first, last, each.logarithmic)
            start, end = (_number(value, exact=each.logarithmic) for value in (first, last))
            row = {"what": each.words, "start": start, "end": end, "change": change, "meaning": MEANINGS[each.name]}
            if without is not None and each.name in without.observables:
                row["bare"] = _number(without.observables[each.name][-1], exact=each.logarithmic)
            rows.append(row)
    columns = (
        Column("what", "observable", "text"),
        *(Column(name, name) for name in ("start", "end", "change")),
        *((Column("bare", WITHOUT),) if without is not None else ()),
        Column("meaning", "which is", "wrap"),
    )
    sentence = "Every observable at the first and at the last moment."
    if without is not None:
        sentence += f" {WITHOUT.capitalize()}: at the last moment of that run, t = {without.end:.3g}."
    table = page.rows(f"{flow.encoding} observables", rows)
    return Listing("Observables", sentence, table, columns, top=len(rows))


def _paths(page: Page, flow: Flow, title: str, where: str) -> Chart:
    moving = flow.trajectory
    tokens = range(0, len(moving.xy[0]), max(1, math.ceil(len(moving.xy[0]) / DRAWN)))
    rows = [
        {"token": n, "time": moving.times[i], "x": moving.xy[i][n][0], "y": moving.xy[i][n][1]}
        for n in tokens
        for i in range(len(moving.times))
    ]
    reach = 1.05 * max(max(abs(row["x"]), abs(row["y"])) for row in rows) or 1.0
    table = page.rows(f"{flow.encoding} paths", rows)
    sentence = f"In {where}; from the first token (blue) to the last (amber), a dot where each ends."
    return Chart(title, sentence, table, charts.paths("x", "y", "token", "time", reach), in_figure=True)


def _curves(page: Page, flow: Flow, without: Flow | None, *, in_figure: bool) -> list[Chart]:
    """Norms, distances, cosines and clusters over time, each beside that of the run without position."""
    runs = [(_with(flow), flow), *([(WITHOUT, without)] if without is not None else [])]
    sizes: list[dict[str, Any]] = [
        {"time": t, "token": which, "norm": value} for key, which in NORMS.items() for t, value in _points(flow, key)
    ]
    if without is not None:
        sizes += [
            {"time": t, "token": f"largest, {WITHOUT}", "norm": size} for t, size in _points(without, "norm_max")
        ]
    norms = [row["norm"] for row in sizes]
    log = _logarithmic(norms)
    found = [
        Chart(
            "Norm of tokens",
            f"Smallest, median and largest norm over time{' (logarithmic)' if log else ''}.",
            page.rows(f"{flow.encoding} norms", sizes),
            charts.line("time", "norm", colour="token", log_y=log, y_domain=_from_zero(norms)),
            in_figure=in_figure,
        )
    ]
    for key, (title, words, name) in PAIRED.items():
        rows: list[dict[str, Any]] = [
            {"run": which, "time": t, name: value} for which, each in runs for t, value in _points(each, key)
        ]
        if not rows:
            continue
        values = [row[name] for row in rows]
        log = key == "distance_mean" and _logarithmic(values)
        reach = (-1.0, 1.0) if key == "cosine_mean" else _from_zero(values)
        spec = charts.line("time", name, colour="run" if without is not None else None, log_y=log, y_domain=reach)
        sentence = words + (" (logarithmic)." if log else ".")
        table = page.rows(f"{flow.encoding} {name}", rows)
        found.append(Chart(title, sentence, table, spec, in_figure=in_figure and key == "cosine_mean"))
    return found


def _with(flow: Flow) -> str:
    """The name of a flow beside that without position."""
    return f"with {label(flow)}"


def _points(flow: Flow, key: str) -> list[tuple[float, float]]:
    """When a quantity was measured, and what it was: all pairs are looked at now and then, not at every moment."""
    pairs = zip(flow.observables["time"], flow.observables.get(key, ()), strict=False)
    return [(t, value) for t, value in pairs if math.isfinite(value) and (key in SIGNED or value > 0)]


# ------------------------------------------------------------------ several flows
def _side_by_side(page: Page, flows: Sequence[Flow]) -> list[Any]:
    names = [flow.encoding for flow in flows]
    both = [each for each in OBSERVABLES if all(each.name in flow.observables for flow in flows)]
    cells: list[tuple[str, list[str | None]]] = [
        ("verdict", [_words(flow.verdict.verdict).lower() if flow.verdict else "none" for flow in flows]),
        ("by", [_numbered(flow) for flow in flows]),
        ("run", [_words(flow.status).lower() for flow in flows]),
        ("time", [_number(flow.end) for flow in flows]),
        ("growth rate", [_number(flow.growth_rate) for flow in flows]),
        *((each.words, [_number(flow.observables[each.name][-1]) for flow in flows]) for each in both),
        ("evaluations", [str(flow.evaluations) for flow in flows]),
    ]
    rows = [{"what": what, **{f"flow {i}": cell for i, cell in enumerate(row)}} for what, row in cells]
    table = page.rows("side by side", rows)
    found: list[Any] = []
    for first in range(0, len(flows), ACROSS):
        chosen = range(first, min(first + ACROSS, len(flows)))
        columns = (Column("what", "at the end", "text"), *(Column(f"flow {i}", names[i]) for i in chosen))
        found.append(Listing("As they ended", "The same tokens under each encoding.", table, columns, top=len(rows)))
    return [*found, Row(tuple(_compared(page, flows, names)))]


def _compared(page: Page, flows: Sequence[Flow], names: Sequence[str]) -> list[Chart]:
    titles = {"norm_max": ("Largest norm", "The largest token's norm over time", "largest norm"), **PAIRED}
    found = []
    for key, (title, words, name) in titles.items():
        rows: list[dict[str, Any]] = [
            {"encoding": flow.encoding, "time": t, "value": value}
            for flow in flows
            for t, value in _points(flow, key)
        ]
        if rows:
            values = [row["value"] for row in rows]
            log = key in ("norm_max", "distance_mean") and _logarithmic(values)
            reach = (-1.0, 1.0) if key == "cosine_mean" else _from_zero(values)
            spec = charts.line("time", "value", colour="encoding", log_y=log, y_title=name, y_domain=reach)
            spec = charts.in_colours_of_encodings(spec, "encoding", list(dict.fromkeys(names)))
            sentence = words + (" (logarithmic)." if log else ".")
            table = page.rows(f"{key} by encoding", rows)
            found.append(Chart(title, sentence, table, spec, in_figure=key != "clusters"))
    return found


def _numbered(flow: Flow) -> str | None:
    return f"Thm {flow.verdict.rule.removeprefix('T')}" if flow.verdict and flow.verdict.rule else None


# ------------------------------------------------------------------ numbers
def _logarithmic(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > 30 * min(positive)


def _from_zero(values: Sequence[float]) -> tuple[float, float]:
    """An axis on which what hardly changes is seen to do so."""
    return 0.0, 1.08 * max(values, default=0.0) or 1.0


def _number(value: float, *, exact: bool = True) -> str | None:
    """A number as text; what is no size of a token has no digits below 1e-12."""
    if math.isnan(value):
        return None
    if not exact and 0 < abs(value) < 1e-12:
        return "under 1e-12" if value > 0 else "0"
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value + 0.0:{'.4g' if 0.01 <= abs(value) < 1000 else '.3g'}}"


def _change(first: float, last: float, ratio: bool) -> str:
    if math.isnan(first) or math.isnan(last):
        return ""
    if ratio and first > 0 and last > 0:
        return f"x {fold(last / first).removeprefix('about ')}"
    return f"{last - first:+,.0f}" if 1000 <= abs(last - first) < 1e6 else f"{last - first:+.3g}"
