"""The report of `flow`: tokens in motion, what a theorem says beside it, and every observable over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.dynamics.observables import OBSERVABLES
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Pairs, Paragraphs, Particles, Row, Summary, shown


def build(result: Mapping[str, Any], page: Page) -> None:
    flows = result["flows"]
    asked = result["options"].get("compare")
    names = [name.strip() for name in asked.split(",")] if asked else [flow["title"] for flow in flows]
    for name, flow in zip(names, flows, strict=True):
        _one(page, name, flow, name if len(flows) > 1 else "What became of the tokens")
    if len(flows) > 1:
        _together(page, names, flows)


def _one(page: Page, name: str, flow: Mapping[str, Any], heading: str) -> None:
    moving = flow.get("trajectory")
    said = [flow["meaning"][:1].upper() + flow["meaning"][1:] + f" (t = {flow['end']:.3g})."]
    said += [f"At t = {event['time']:.3g}: {event['words']}." for event in flow["events"]]
    if not any(event["name"] == flow["status"] for event in flow["events"]):  # else it has just been said
        said.append(flow["observed"][:1].upper() + flow["observed"][1:] + ".")
    blocks: list[Any] = [Summary(tuple(said))]
    if moving:
        where = (
            "the tokens' own plane" if moving["share"] > 0.9995 else f"two main directions ({moving['share']:.0%})"
        )
        scale = "; sizes are relative to the largest token of the moment" if moving["relative"] else ""
        words = f"Each dot is a token in {where}{scale}. Colour runs from the first token to the last."
        picture = Particles("Tokens in motion", words, moving["times"], moving["xy"])
        blocks.append(Row((picture, _verdict(flow))))
    else:
        blocks.append(_verdict(flow))
    blocks += [Row(_curves(page, name, flow)), _observables(page, name, flow)]
    if flow["notes"]:
        blocks.append(Paragraphs(tuple(flow["notes"]), soft=True))
    page.add(heading, *blocks)


def _verdict(flow: Mapping[str, Any]) -> Pairs:
    settings = flow["settings"]
    about = [
        ("tokens", shown(flow["tokens"])),
        ("mask", "causal" if settings.get("causal") else "none") if "causal" in settings else None,
        ("encoding", str(settings.get("encoding"))),
        ("growth rate at the end", shown(flow["growth_rate"])),
        ("evaluations", shown(flow["evaluations"])),
    ]
    kept = tuple(item for item in about if item is not None)
    verdict = flow["verdict"]
    if verdict is None:
        return Pairs("No theorem speaks of this", kept, "The run is all there is.")
    title = verdict["verdict"].replace("_", " ") + (f", by {verdict['rule']}" if verdict["rule"] else "")
    facts = (
        *((("scope", str(verdict["scope"]).replace("_", " ")),) if verdict["scope"] else ()),
        ("speaks of it exactly", shown(verdict["exact"])),
        ("margin", shown(verdict["margin"], "percent")),
        ("Re eig(V)", f"{shown(verdict['omega'])} to {shown(verdict['alpha'])}"),
    )
    statement = verdict["statement"][:1].upper() + verdict["statement"][1:] + "."
    return Pairs(title, (*facts, *kept), statement, dot=verdict["verdict"])


def _curves(page: Page, name: str, flow: Mapping[str, Any]) -> tuple[Chart, ...]:
    seen = flow["observables"]
    times = seen["time"]
    labels = {"norm_min": "smallest", "norm_median": "median", "norm_max": "largest"}
    sizes = [
        {"time": t, "token": label, "norm": value}
        for key, label in labels.items()
        for t, value in zip(times, seen[key], strict=True)
        if value is not None and value > 0
    ]
    spread = [value for key in labels for value in seen[key] if value]
    log = bool(spread) and max(spread) > 30 * min(spread)
    closeness = {"time": times, "cosine": seen["cosine_mean"], "distance": seen["distance_mean"]}
    distances = [value for value in seen["distance_mean"] if value]
    log_distance = bool(distances) and max(distances) > 30 * min(distances)
    scale = " (logarithmic)" if log else ""
    near = page.table(f"{name} closeness", closeness)
    found = (
        Chart(
            "How large tokens are",
            f"Smallest, median and largest norm over time{scale}.",
            page.rows(f"{name} norms", sizes),
            charts.line("time", "norm", colour="token", log_y=log),
        ),
        Chart(
            "How far apart they are",
            f"Mean distance over pairs of tokens{' (logarithmic)' if log_distance else ''}.",
            near,
            charts.line("time", "distance", log_y=log_distance),
        ),
        Chart(
            "Whether they point the same way",
            "Mean cosine over pairs: 1 is one direction for all.",
            near,
            charts.line("time", "cosine"),
        ),
    )
    return found if any(value is not None for value in seen["cosine_mean"]) else found[:1]


def _observables(page: Page, name: str, flow: Mapping[str, Any]) -> Listing:
    seen = flow["observables"]
    rows = [
        {"what": each.words, "start": seen[each.name][0], "end": seen[each.name][-1]}
        for each in OBSERVABLES
        if each.name in seen
    ]
    columns = (Column("what", "observable", "text"), Column("start", "start"), Column("end", "end"))
    words = "Every observable at the first and at the last moment."
    return Listing("From start to end", words, page.rows(f"{name} observables", rows), columns)


def _together(page: Page, names: list[str], flows: list[Mapping[str, Any]]) -> None:
    rows = [
        {
            "encoding": name,
            "verdict": flow["verdict"]["verdict"] if flow["verdict"] else "none",
            "rule": flow["verdict"]["rule"] if flow["verdict"] else None,
            "run": flow["status"],
            "time": flow["end"],
            "growth_rate": flow["growth_rate"],
            "cosine": flow["observables"]["cosine_mean"][-1],
        }
        for name, flow in zip(names, flows, strict=True)
    ]
    columns = (
        Column("encoding", "encoding", "plain"),
        Column("verdict", "verdict", "text"),
        Column("rule", "rule", "plain"),
        Column("run", "how it ended", "text"),
        Column("time", "time"),
        Column("growth_rate", "growth rate"),
        Column("cosine", "mean cosine"),
    )
    table = page.rows("side by side", rows)
    page.add("Side by side", Listing("As they ended", "The same tokens under each encoding.", table, columns))
