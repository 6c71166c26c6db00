"""The report of `beside`: what layers do to a real text, beside the flow; or verdicts against runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, HeadMap, Listing, Measure, Page, Paragraphs, Row, Summary, count

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
    one = len(run["runs"]) == 1
    said = [
        f"{count(len(run['runs']), 'certified head')} {'was' if one else 'were'} let run, each alone, from "
        f"{run['tokens']} real tokens.",
        f"{agrees} of them agree with their theorem, {waits} show nothing yet in the time given, {against} "
        "contradict it.",
    ]
    if run["undecided"]:
        said.append(f"{count(run['undecided'], 'head')} without a certified verdict: not run.")
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
    rows = [
        {**{key: each[key] for key in keys}, "says": _sentence(each["sentence"]), "shown_first": False}
        for each in run["runs"]
    ]
    if rows:
        next((row for row in rows if row["word"] == "contradicts"), rows[0])["shown_first"] = True
    blocks: list[Any] = [Summary(tuple(said))]
    if rows:
        table = page.rows("verified heads", rows)
        measures = (
            Measure("word", "Agreement", "category", "Does the run agree with the theorem?", words=_WORDS),
            Measure("rate", "Rate", "diverging", "Growth of the largest token over time, as simulated.", harm=True),
        )
        columns = (
            Column("layer", "layer"), Column("head", "head"), Column("verdict", "verdict", "text"),
            Column("observed", "observed", "text"), Column("word", "together", "text"), Column("rate", "rate"),
        )  # fmt: skip
        blocks += [
            HeadMap(
                "Verdict and run",
                "Layers down, heads across; choose one to see what was certified and what was seen.",
                table,
                measures,
                facts=(
                    Column("verdict", "verdict", "text"),
                    Column("rule", "by rule", "plain"),
                    Column("observed", "observed", "text"),
                    Column("word", "together", "text"),
                    Column("rate", "growth rate at the end"),
                    Column("mean_rate", "mean growth rate"),
                    Column("end", "time it ran"),
                    Column("growth_index", "growth index"),
                ),
            ),
            Listing("All runs", "What was seen of each head.", table, columns, folded=True),
        ]
    page.add(f"Do verdicts hold on {run['text']}?", *blocks)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


def _change(measured: str) -> str:
    return measured.removeprefix("attention ").removeprefix("attention_").replace("_", " ")


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
    said = [
        f"{text['tokens']} tokens went through {count(len(text['layers']), 'layer')}. In each, attention's own step "
        "is set beside one unit of the flow that its weights prescribe."
    ]
    if flow:
        words = [f"{_change(each['measured'])} {each['rho']:.2f}" for each in flow]
        said.append(
            f"Does the flow order the layers as attention does? Rank correlation: {', '.join(words)} "
            "(1: the same order; 0: none)."
        )
    start, end = text["layers"][0], text["layers"][-1]
    said.append(
        f"The tokens' mean cosine goes from {start['cosine']:.2f} at layer {start['layer']} to {end['cosine']:.2f} "
        f"at layer {end['layer']}, their effective rank from {start['effective_rank']:.0f} to "
        f"{end['effective_rank']:.0f}."
    )
    columns = (
        Column("predicted", "predicted by", "text"), Column("measured", "measured", "text"), Column("rho", "rho"),
        Column("p", "p"), Column("count", "layers"),
    )  # fmt: skip
    page.add(
        f"On {text['text']}",
        Summary(tuple(said)),
        Row(
            (
                Chart(
                    "Growth of norms",
                    "Mean log growth of tokens in one layer: by attention's step, the whole layer, the flow.",
                    steps,
                    charts.line("layer", "growth", colour="step", zero=True, points=True, y_title="log growth"),
                ),
                Chart(
                    "Change of cosine",
                    "Does the layer turn tokens towards one another (above 0) or apart?",
                    steps,
                    charts.line("layer", "cosine", colour="step", zero=True, points=True, y_title="change of cosine"),
                ),
                Chart(
                    "Mean cosine of tokens",
                    "Over pairs of the tokens that enter each layer: 1 where all point one way.",
                    table,
                    charts.line("layer", "cosine", points=True, y_title="mean cosine"),
                ),
                Chart(
                    "Effective rank of tokens",
                    "How many directions the tokens that enter each layer fill.",
                    table,
                    charts.line("layer", "rank", points=True, y_title="effective rank"),
                ),
            )
        ),
        Listing(
            "Rank correlations",
            "Spearman's rho across layers; p is the chance of one as large without any relation.",
            page.rows("correlations", known),
            columns,
            folded=True,
        )
        if known
        else Paragraphs((f"{count(len(text['layers']), 'layer')}: too few for a rank correlation.",), soft=True),
    )
