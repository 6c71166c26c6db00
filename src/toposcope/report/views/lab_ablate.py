"""The view of a trained small model without each of its heads: accuracy on its own task, by zero and by mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toposcope.core.statistics import of_shares, told_from_zero
from toposcope.lab.result import AblationMap, LabAblateResult
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, HeadMap, Listing, Measure, Page, Summary

METHODS = {"zero": "nothing in its place", "mean": "its mean in its place"}


def view(result: LabAblateResult, page: Page) -> None:
    """Add the sections of an ablation."""
    found = result.ablation
    page.facts += [
        (str(sum(len(layer.accuracy) for layer in found.zero)), "heads removed in turn"),
        (f"{found.base:.1%}", f"accuracy on {result.task}"),
        (f"{found.floor:.1%}", "floor"),
        (f"{found.sentences:,}", "new sentences"),
    ]
    sections(page, found)


def sections(page: Page, found: AblationMap, *, brief: bool = False) -> None:
    """The map of a trained small model, and whether a layer hangs on one head; `brief`: on a terminal in words."""
    rows = _rows(found)
    worst = max(rows, key=lambda row: row["damage_zero"])
    worst["shown_first"] = True
    table = page.rows("accuracy without each head", rows)
    page.add("What each head is worth", Summary(tuple(_summary(found, worst))))
    words = "By how much the share of right answers falls with {}: 0 where the model does as well without it."
    measures = tuple(
        Measure(f"damage_{how}", f"Damage ({how})", "diverging", words.format(what), harm=True)
        for how, what in METHODS.items()
    )
    facts = tuple(Column(f"accuracy_{how}", f"right, with {what}", "percent") for how, what in METHODS.items())
    page.add(
        "Ablation map",
        HeadMap(
            "What is lost without each head",
            "Layers down, heads across; each was removed alone. Choose one to see its numbers.",
            table,
            measures,
            facts=(*facts, *(Column(f"damage_{how}", f"damage ({how})", "percent") for how in METHODS)),
            in_figure=not brief,
        ),
        Listing(
            "Every head",
            f"{found.base:.1%} are right with all heads; the floor is {found.floor:.1%}.",
            table,
            (
                Column("layer", "layer"), Column("head", "head"),
                *(Column(f"accuracy_{how}", f"right ({how})", "percent") for how in METHODS),
                *(Column(f"damage_{how}", f"damage ({how})", "percent") for how in METHODS),
            ),
            folded=True,
            top=32,
        ),
        detail=brief,
    )  # fmt: skip
    page.add("Deposit: does a layer hang on one head?", *_deposits(page, found, brief), detail=brief)


def _rows(found: AblationMap) -> list[dict[str, Any]]:
    return [
        {
            "layer": zero.layer,
            "head": head,
            "accuracy_zero": left,
            "accuracy_mean": right,
            "damage_zero": found.base - left,
            "damage_mean": found.base - right,
            "says": f"Without it {left:.1%} are right, where it is {found.base:.1%} with all heads.",
            "shown_first": False,
        }
        for zero, mean in zip(found.zero, found.mean, strict=True)
        for head, (left, right) in enumerate(zip(zero.accuracy, mean.accuracy, strict=True))
    ]


def _summary(found: AblationMap, worst: dict[str, Any]) -> list[str]:
    skill = found.base - found.floor
    if skill <= 0:
        return [
            f"{found.base:.1%} are right with all heads, which is not above the floor of {found.floor:.1%}: there is "
            "no skill to lose."
        ]
    half = of_shares(found.base, worst["accuracy_zero"], found.sentences)
    sure = told_from_zero(worst["damage_zero"], half)
    first = (
        f"Head {worst['layer']}.{worst['head']} {'matters most' if sure else 'measures worst'}: without it "
        f"{worst['accuracy_zero']:.1%} are right instead of {found.base:.1%} (± "
        f"{100 * half:.1f} points, 95%)"
    )
    if sure:
        share = worst["damage_zero"] / skill
        lost = f"{share:.0%} of" if share <= 1 else "all, and more than all, of"
        said = [f"{first}, a loss of {lost} what the model can do above the floor."]
    else:
        said = [f"{first}. These {found.sentences:,} sentences cannot tell that from 0."]
    said += _layers(found)
    joint = found.joint
    if joint is not None and joint.heads:
        names = ", ".join(f"{layer}.{head}" for layer, head in joint.heads)
        said.append(
            f"Without the worst head of every layer ({names}) {joint.accuracy:.1%} are right; without just one "
            f"of them: {', '.join(f'{each:.1%}' for each in joint.alone)}."
        )
    return said


def _layers(found: AblationMap) -> list[str]:
    said = []
    for layer in found.zero:
        if layer.di is None:
            said.append(f"Layer {layer.layer} has no deposit index: there is hardly anything to lose.")
            continue
        inside = layer.interval
        span = "" if inside is None else f" (95%: {inside.low:.2f} to {inside.high:.2f})"
        said.append(f"Layer {layer.layer} has a deposit index of {layer.di:.2f}{span}, on head {layer.head}.")
    return said


def _deposits(page: Page, found: AblationMap, brief: bool) -> list[Any]:
    rows = [
        {
            "what": f"layer {layer.layer}, {how}",
            "index": layer.di,
            "low": layer.di if layer.interval is None else layer.interval.low,
            "high": layer.di if layer.interval is None else layer.interval.high,
            "head": layer.head,
            "share": layer.share,
            "gini": layer.gini,
            "same_head": layer.same_head,
        }
        for how, layers in (("zero", found.zero), ("mean", found.mean))
        for layer in layers
    ]
    columns = (
        Column("what", "layer, method", "plain"), Column("index", "deposit index"), Column("low", "from"),
        Column("high", "to"), Column("head", "head"), Column("share", "its share", "percent"), Column("gini", "Gini"),
        Column("same_head", "same head in draws", "percent"),
    )  # fmt: skip
    there = tuple(column for column in columns if any(row[column.key] is not None for row in rows))
    words = (
        "Deposit index (how much hangs on a single head): 1 where one head carries the layer's skill, 0 where at "
        f"least two matter, or none alone. Intervals from {found.draws:,} resamplings of sentences."
    )
    keys = ("what", "index", "low", "high", "head", "share")
    known: Sequence[dict[str, Any]] = [row for row in rows if row["index"] is not None]
    same = (
        "its share, Gini: of the damages in the layer. " if known else "No deposit index: hardly anything to lose. "
    )
    same += "same head in draws: how often the same head is the worst."
    listing = Listing("Layer by layer", same, page.rows("deposits", rows), there, brief=keys, top=24)
    if not known:
        return [listing]
    spec = charts.intervals(
        "what", "index", "low", "high", order=[row["what"] for row in known], x_title="deposit index", domain=(0, 1)
    )
    picture = Chart("Deposit index", words, page.rows("deposit indices", known), spec, in_figure=not brief)
    return [picture, listing]
