"""The report of `beside`: what layers do to a real text, beside the flow; or verdicts against runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Beside, Chart, Column, HeadMap, Listing, Measure, Page, Says, Words, count

_WORDS = {"agrees": "a", "not_yet": "·", "contradicts": "X"}


def build(result: Mapping[str, Any], page: Page) -> None:
    for run in result.get("verdicts") or []:
        _verification(page, run)
    for text in (result.get("beside") or {}).get("texts", []):
        _text(page, text)


def _verification(page: Page, run: Mapping[str, Any]) -> None:
    words = run["words"]
    agrees, waits, against = (
        sum(counts[key] for counts in words.values()) for key in ("agrees", "not_yet", "contradicts")
    )
    said = [
        f"{len(run['runs'])} certified heads were let run from {run['tokens']} real tokens ({run['text']}).",
        f"{agrees} agree with their theorem, {waits} show nothing yet in the time given, {against} contradict it.",
    ]
    if run["undecided"]:
        said.append(f"{run['undecided']} heads have no certified verdict and were not run.")
    keys = (
        "layer",
        "head",
        "verdict",
        "rule",
        "observed",
        "word",
        "sentence",
        "end",
        "rate",
        "mean_rate",
        "growth_index",
    )
    rows = [{**{key: each[key] for key in keys}, "says": each["sentence"]} for each in run["runs"]]
    blocks: list[Any] = [Says(tuple(said))]
    if rows:
        table = page.rows("verified heads", rows)
        measures = (
            Measure("word", "Agreement", "category", "Does the run agree with the theorem?", words=_WORDS),
            Measure("rate", "Rate", "diverging", "Growth of the largest token over time, as simulated."),
        )
        columns = (
            Column("layer", "layer"), Column("head", "head"), Column("verdict", "verdict", "text"),
            Column("observed", "observed", "text"), Column("word", "together", "text"), Column("rate", "rate"),
        )  # fmt: skip
        blocks += [
            HeadMap("Verdict and run", "Layers down, heads across.", table, measures),
            Listing("All runs", "What was seen of each head.", table, columns, folded=True),
        ]
    page.add(f"Do verdicts hold on {run['text']}?", *blocks)


def _text(page: Page, text: Mapping[str, Any]) -> None:
    rows, states = [], []
    for layer in text["layers"]:
        states.append(
            {
                "layer": layer["layer"],
                "norm": layer["norm"],
                "cosine": layer["cosine"],
                "rank": layer["effective_rank"],
            }
        )
        for name, step in (
            ("attention", layer["attention"]),
            ("whole layer", layer["whole"]),
            ("flow", layer["flow"]),
        ):
            if step is not None:
                rows.append(
                    {
                        "layer": layer["layer"],
                        "step": name,
                        "growth": step["norm_growth"],
                        "cosine": step["cosine_change"],
                        "dispersion": step["dispersion_growth"],
                    }
                )
    steps, table = page.rows("steps", rows), page.rows("states", states)
    known = [each for each in text["correlations"] if each["rho"] is not None]
    flow = [each for each in known if each["predicted"] == "flow" and each["measured"].startswith("attention")]
    said = [f"{text['tokens']} tokens went through {count(len(text['layers']), 'layer')}: {text['text']}."]
    for each in flow:
        words = each["measured"].removeprefix("attention ").replace("_", " ")
        said.append(f"Across layers the flow's {words} ranks as attention's does with rho = {each['rho']:.2f}.")
    columns = (
        Column("predicted", "predicted by", "text"), Column("measured", "measured", "text"), Column("rho", "rho"),
        Column("p", "p"), Column("count", "layers"),
    )  # fmt: skip
    page.add(
        f"On {text['text']}",
        Says(tuple(said)),
        Beside(
            (
                Chart(
                    "Growth of norms",
                    "Mean log growth of tokens in one layer: attention's step, the whole layer, the flow.",
                    steps,
                    charts.line("layer", "growth", colour="step", zero=True, points=True),
                ),
                Chart(
                    "Change of cosine",
                    "Does the layer turn tokens towards one another (above 0)?",
                    steps,
                    charts.line("layer", "cosine", colour="step", zero=True, points=True),
                ),
                Chart(
                    "Mean cosine of tokens",
                    "Of the tokens that enter each layer.",
                    table,
                    charts.line("layer", "cosine", points=True),
                ),
            )
        ),
        Listing(
            "Rank correlations",
            "Spearman's rho across layers.",
            page.rows("correlations", known),
            columns,
            folded=True,
        )
        if known
        else Words((f"{count(len(text['layers']), 'layer')}: too few for a rank correlation.",), soft=True),
    )
