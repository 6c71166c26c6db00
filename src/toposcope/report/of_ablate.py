"""The report of `ablate`: what the model loses with each head, and whether a layer hangs on one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.core.statistics import told_from_zero
from toposcope.report import charts
from toposcope.report.ablate_words import half, meaning
from toposcope.report.blocks import Chart, Column, HeadMap, Listing, Measure, Page, PanelChart, Paragraphs, Summary

WORST = 12


def build(result: Mapping[str, Any], page: Page) -> None:
    found = result["ablation"]
    texts = [text["name"] for text in found["texts"]]
    base: list[float] = next((text["base"] for text in found["texts"] if text["name"] == "text"), [])
    rows = [_row(head, texts, base) for head in found["heads"]]
    page.facts += [
        (str(len(rows)), "heads removed in turn"),
        *(
            (f"{round(_mean(text['base']), 3) + 0.0:.3f}", f"{found['unit']}, {text['name']}")
            for text in found["texts"]
        ),
    ]
    if not rows:
        page.add("Summary", Summary(("No head was measured.",)))
        return
    page.add("Summary", Summary(tuple(meaning(found))))
    worst = max(range(len(rows)), key=lambda i: rows[i].get("damage_text") or 0.0)
    rows[worst]["shown_first"] = True
    table = page.rows("damages", rows)
    measures = [
        Measure(
            f"damage_{name}",
            name.capitalize(),
            "diverging",
            f"How much the loss on the {name} rises without the head ({found['unit']}).",
            harm=True,
        )
        for name in texts
        if any(row[f"damage_{name}"] is not None for row in rows)
    ]
    if any(row["position"] is not None for row in rows):
        words = "Damage on the text beyond that on its shuffled copy: a heuristic of position carried."
        measures.append(Measure("position", "Position", "diverging", words))
    page.add(
        "Ablation map",
        HeadMap(
            "What each head is worth",
            f"Layers down, heads across; each was removed alone ({found['method']}). Choose one to see its numbers.",
            table,
            tuple(measures),
            facts=(
                *(Column(f"damage_{name}", f"damage on {name}") for name in texts),
                *(Column(f"error_{name}", f"standard error on {name}") for name in texts),
                Column("position", "text less shuffled"),
            ),
            charts=(
                PanelChart(
                    "Sequence by sequence",
                    "Damage on each sequence of the text.",
                    {"damage": "by_sequence"},
                    {
                        "height": 150,
                        "mark": {"type": "bar", "color": charts.PALETTE[0]},
                        "encoding": {
                            "x": {"field": "sequence", "type": "ordinal", "axis": {"labelAngle": 0}},
                            "y": charts.quantity("damage"),
                        },
                    },
                    index="sequence",
                ),
            ),
        ),
    )
    page.add("The heads that matter most", _worst(page, rows))
    if found["layers"]:
        page.add("Deposit: does a layer hang on one head?", *_deposits(page, found["layers"]))
    if found["pairs"]:
        columns = (
            Column("first", "first", "plain"), Column("second", "second", "plain"), Column("damage", "damage"),
            Column("redundancy", "redundancy"), Column("error", "error"),
        )  # fmt: skip
        words = "Above 0 the two heads stand in for each other; below 0 they work one after the other."
        keys = ("first", "second", "damage", "redundancy", "error")
        page.add(
            "Pairs", Listing("Two heads removed together", words, page.rows("pairs", found["pairs"], keys), columns)
        )
    damages = (
        Column("layer", "layer"),
        Column("head", "head"),
        *(Column(f"damage_{name}", name) for name in texts),
        *(Column(f"error_{name}", f"± {name}") for name in texts),
    )
    page.add("Every head", Listing("All damages", f"In {found['unit']}.", table, damages))
    if found["notes"]:
        page.add("Notes", Paragraphs(tuple(found["notes"]), soft=True))


def _row(head: Mapping[str, Any], texts: Sequence[str], base: Sequence[float]) -> dict[str, Any]:
    damage, error = head["damage"], head["error"]
    both = damage.get("text") is not None and damage.get("shuffled") is not None
    own = damage.get("text")
    spread = half(head)
    words = "" if own is None else f"Without it the loss on the text changes by {own:+.4f}"
    words += "." if spread is None or not words else f" ± {spread:.4f} (95 %)."
    if own is not None and spread is not None and not told_from_zero(own, spread):
        words += " That cannot be told from 0."
    return {
        "layer": head["layer"],
        "head": head["head"],
        **{f"damage_{name}": damage.get(name) for name in texts},
        **{f"error_{name}": error.get(name) for name in texts},
        "half_text": spread,
        "position": damage["text"] - damage["shuffled"] if both else None,
        "says": words,
        "shown_first": False,
        "by_sequence": _by_sequence(head["scores"].get("text") or [], base, own),
    }


def _by_sequence(scores: Sequence[float], base: Sequence[float], damage: float | None) -> list[float]:
    """How much worse each sequence is; for scores where more is better the sign turns, as it does in the damage."""
    rise = [score - whole for score, whole in zip(scores, base, strict=False)]
    if not rise or damage is None:
        return []
    sign = 1.0 if sum(rise) * damage >= 0 else -1.0
    return [sign * value for value in rise]


def _worst(page: Page, rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    ranked = sorted((row for row in rows if row["damage_text"] is not None), key=lambda row: -row["damage_text"])[
        :WORST
    ]
    bars = [
        {
            "head": f"{row['layer']}.{row['head']}",
            "damage": row["damage_text"],
            "low": row["damage_text"] - (row["half_text"] or 0.0),
            "high": row["damage_text"] + (row["half_text"] or 0.0),
        }
        for row in ranked
    ]
    if not bars:
        return None
    return Chart(
        "Damage of the worst heads",
        "How much the loss on the text rises without each, with Student's 95 % interval over sequences; the largest "
        "of many noisy numbers tends to be too large."
        + ("" if any(row["half_text"] is not None for row in ranked) else " One sequence: no intervals."),
        page.rows("worst heads", bars),
        charts.intervals("head", "damage", "low", "high", order=[bar["head"] for bar in bars]),
    )


def _deposits(page: Page, layers: Sequence[Mapping[str, Any]]) -> list[Any]:
    rows = [
        {
            "layer": layer["layer"],
            "index": layer["deposit"]["di"],
            "low": ((layer["spread"] or {}).get("di") or {}).get("low"),
            "high": ((layer["spread"] or {}).get("di") or {}).get("high"),
            "head": layer["deposit"]["head"],
            "share": layer["deposit"]["share"],
            "gini": layer["deposit"]["gini"],
            "same_head": (layer["spread"] or {}).get("same_head"),
        }
        for layer in layers
    ]
    table = page.rows("deposits", rows)
    columns = (
        Column("layer", "layer"), Column("index", "deposit index"), Column("low", "from"), Column("high", "to"),
        Column("head", "head"), Column("share", "its share", "percent"), Column("gini", "Gini"),
        Column("same_head", "same head in draws", "percent"),
    )  # fmt: skip
    listing = Listing("Layer by layer", "Intervals are the bootstrap's, over sequences.", table, columns)
    if all(row["index"] is None for row in rows):
        return [listing]
    spec: dict[str, Any] = {
        "height": 220,
        "layer": [
            {
                "mark": {"type": "bar", "color": charts.PALETTE[0]},
                "encoding": {
                    "x": {"field": "layer", "type": "ordinal", "axis": {"labelAngle": 0, "labelOverlap": "greedy"}},
                    "y": charts.quantity("index", "deposit index"),
                    "tooltip": [
                        {"field": "layer"},
                        {"field": "head"},
                        {"field": "index"},
                        {"field": "low"},
                        {"field": "high"},
                    ],
                },
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {
                    "x": {"field": "layer", "type": "ordinal"},
                    "y": charts.quantity("low", "deposit index"),
                    "y2": {"field": "high"},
                },
            },
        ],
    }
    words = (
        "How much hangs on a single head: how far the worst of a layer stands above the next, relative to what "
        "position is worth. "
        "The index is never negative, so noise gives more than 0 too: read it with the share of draws that agree."
    )
    return [Chart("Deposit index by layer", words, table, spec), listing]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
