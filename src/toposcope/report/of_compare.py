"""The report of `compare`: how far each head moved between two checkpoints, and whose verdict did not survive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, HeadMap, Listing, Measure, Page, Row, Summary
from toposcope.report.compare_words import meaning, ranked

LETTERS = {"same": "·", "moved": "X"}
_MEASURES = (
    Measure("change_W", "Change of Q'K", "sequential", "|A - B| / |A| of scale QᵀK, exact.", "percent", 0.0),
    Measure("change_V", "Change of O V", "sequential", "|A - B| / |A| of O V, exact.", "percent", 0.0),
    Measure(
        "change_kernel",
        "Change of kernel",
        "sequential",
        "Relative distance of the mean positional kernels (heuristic).",
        "percent",
        0.0,
    ),
    Measure("kept", "Verdict", "category", "Whether the theorem's verdict is the same for both.", words=LETTERS),
    Measure(
        "growth_change",
        "Growth",
        "diverging",
        "Growth index in B less that in A: above 0 more of its spectrum grows.",
        harm=True,
    ),
)
_COLUMNS = (
    Column("layer", "layer"),
    Column("head", "head"),
    Column("change_W", "change of Q'K", "percent"),
    Column("change_V", "change of O V", "percent"),
    Column("change_kernel", "change of kernel", "percent"),
    Column("cosine_W", "cosine Q'K"),
    Column("cosine_V", "cosine O V"),
    Column("verdict_a", "verdict in A", "text"),
    Column("verdict_b", "verdict in B", "text"),
    Column("growth_a", "growth in A"),
    Column("growth_b", "growth in B"),
    Column("peak_a", "peak in A"),
    Column("peak_b", "peak in B"),
)


def build(result: Mapping[str, Any], page: Page) -> None:
    heads = result["heads"]
    page.line = f"A: {result['a']}; B: {result['b']}"
    page.facts += [
        (str(len(heads)), "heads"),
        (str(result["moved"]), "verdicts moved"),
        (str(result["looks_elsewhere"]), "kernels peak elsewhere"),
    ]
    page.add("Summary", Summary(tuple(meaning(result))))
    if result.get("encodings"):
        rows = [{**each, "layers": ", ".join(map(str, each["layers"])) or "all"} for each in result["encodings"]]
        settings = (
            Column("what", "setting", "text"), Column("a", "in A", "wrap"), Column("b", "in B", "wrap"),
            Column("layers", "layers", "wrap"),
        )  # fmt: skip
        words = "What differs in the positional encodings; all else on this page comes from weights and these."
        page.add("Encodings", Listing("The encodings differ", words, page.rows("encodings", rows), settings))
    if not heads:
        return
    top = ranked(heads)[0]
    rows = [
        {
            **head,
            "kept": "same" if head["verdict_a"] == head["verdict_b"] else "moved",
            "growth_change": _less(head.get("growth_b"), head.get("growth_a")),
            "says": _says(head),
            "shown_first": head is top,
        }
        for head in heads
    ]
    table = page.rows("changes", rows)
    measures = [each for each in _MEASURES if any(row.get(each.key) is not None for row in rows)]
    shown = {each.key for each in measures}
    extra = [key for key in result.get("mean_absolute_change", {}) if f"{key}_change" not in shown][:6]
    measures += [
        Measure(f"{key}_change", key.replace("_", " "), "diverging", f"{key.replace('_', ' ')} in B less that in A.")
        for key in extra
    ]
    columns = tuple(column for column in _COLUMNS if any(row.get(column.key) is not None for row in rows))
    words = "Layers down, heads across; choose a head to see its numbers."
    page.add("Head by head", HeadMap("What changed", words, table, tuple(measures), facts=columns[2:]))
    if result["layers"]:
        names = {"change_W": "Q'K", "change_V": "O V", "change_kernel": "kernel"}
        depth = [
            {"layer": row["layer"], "of": name, "change": row[key]}
            for key, name in names.items()
            for row in result["layers"]
            if row[key] is not None
        ]
        spread = [
            {"layer": row["layer"], "head": row["head"], "change": row["change_W"]}
            for row in rows
            if row.get("change_W") is not None
        ]
        page.add(
            "By depth",
            Row(
                (
                    Chart(
                        "Mean change by layer",
                        "Relative change, mean over a layer's heads.",
                        page.rows("change by layer", depth),
                        charts.line("layer", "change", colour="of", points=True),
                    ),
                    Chart(
                        "Change of Q'K, head by head",
                        "A dot for each head, the line through layer means.",
                        page.rows("spread by layer", spread),
                        charts.dots_and_mean("layer", "change", tooltip=("layer", "head", "change")),
                    ),
                )
            ),
        )
    page.add("Every head", Listing("All heads", "Changes are relative to A.", table, columns))


def _less(b: float | None, a: float | None) -> float | None:
    return None if a is None or b is None else b - a


def _says(head: Mapping[str, Any]) -> str:
    words = []
    if head.get("change_W") is not None:
        words.append(f"Q'K moved by {head['change_W']:.1%} of its size")
    if head.get("change_V") is not None:
        words.append(f"O V by {head['change_V']:.1%}")
    first = ", ".join(words) + "." if words else ""
    if head["verdict_a"] is None:
        return first
    if head["verdict_a"] == head["verdict_b"]:
        return f"{first} The verdict stays: {head['verdict_a'].replace('_', ' ')}.".strip()
    return f"{first} The verdict goes from {head['verdict_a']} to {head['verdict_b']}.".replace("_", " ").strip()
