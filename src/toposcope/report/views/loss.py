"""The view of `loss`: what a text costs by position, and what other encodings change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from toposcope.core.files import present
from toposcope.core.statistics import plus_minus, told_from_zero
from toposcope.models.loss import OWN, Bin, Condition, LossResult
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Command, Listing, Page, Summary
from toposcope.report.commands import command

DRAWN = 24  # conditions in a picture; the table holds all
TOLD = 4  # conditions that the summary tells, those that make a sure difference first
CURVES = 5  # conditions beside the model as it is, by position
BESIDE = 4  # of these in a narrow table
FIRST = 8  # predicted tokens of a stretch that are its beginning


def view(result: LossResult, page: Page) -> None:
    """Add the sections of a loss."""
    own, others = result.conditions[0], result.conditions[1:]
    page.facts += [
        (f"{own.loss:.3f}", f"nats per {'hidden token' if result.predicts == 'masked token' else 'token'}"),
        (str(len(own.by_sequence)), "sequence" if len(own.by_sequence) == 1 else "sequences"),
        (f"{(tokens := sum(part.tokens for part in own.bins)):,}", "token" if tokens == 1 else "tokens"),
    ]
    page.add("Summary", Summary(tuple(_summary(result))), None if others else _next(result))
    if others:
        page.add("With another encoding", *_differences(page, others))
    page.add("By position", *_by_position(page, result))


def label(row: Condition) -> str:
    """A condition's name: its encoding, and where it was put."""
    if row.encoding == OWN:
        return "as it is"
    return row.encoding if row.where is None else f"{row.encoding} in {row.where}"


def _next(result: LossResult) -> Command | None:
    """The same text without position; None for a model that no command can name."""
    if not any(present(each.path) for each in result.provenance.subjects):
        return None
    words = command(result, "loss", ["text", "tokens", "sequences", "begin", "lines", "beyond"])
    return Command("What is position worth on this text?", " ".join([*words, "--encoding", "none"]))


def _summary(result: LossResult) -> list[str]:
    own, others = result.conditions[0], result.conditions[1:]
    masked = result.predicts == "masked token"
    told = "" if masked else f", a perplexity of {math.exp(own.loss):.3g}"
    sentences = [f"{result.text}: {own.loss:.3f} nats per {'hidden token' if masked else 'token'} as it is{told}."]
    ranked = sorted(others, key=lambda row: (not _told(row), -abs(row.difference)))[:TOLD]
    sentences += [_difference(row) for row in ranked]
    if words := _beyond(result, [own, *ranked]) or ("" if masked else _early_and_late(own)):
        sentences.append(words)
    return sentences


def _difference(row: Condition) -> str:
    """What one other encoding changes."""
    where = f" in {row.where}" if row.where else ""
    name = f"Without position{where} (none)" if row.encoding == "none" else f"With {row.encoding}{where}"
    if row.half_width is not None and not _told(row):
        shown = plus_minus(row.difference, row.half_width)
        return f"{name} no difference beyond noise is seen ({shown}); use more --sequences."
    change = plus_minus(abs(row.difference), row.half_width, signed=False)
    alone = "" if row.half_width is not None else " (one sequence: no interval)"
    return f"{name} it {'rises' if row.difference > 0 else 'falls'} by {change} nats, to {row.loss:.3f}{alone}."


def _told(row: Condition) -> bool:
    """Whether the difference is beyond its interval over sequences."""
    return row.half_width is not None and told_from_zero(row.difference, row.half_width)


def _early_and_late(row: Condition) -> str:
    """The loss at the beginning of a stretch, and in the last range of positions."""
    early = [part for part in row.bins if part.last < FIRST]
    late = row.bins[-1]
    if not early or late.first < 2 * FIRST:
        return ""
    start, end = f"{_mean(early):.2f}", plus_minus(late.loss, late.half_width, signed=False)
    return f"By position: {start} nats for each of the first {FIRST} predicted tokens, {end} after {late.first:,}."


def _beyond(result: LossResult, shown: Sequence[Condition]) -> str:
    """The loss within the model's context and beyond it, where a text was longer."""
    context = result.context
    if context is None or shown[0].bins[-1].last < context:
        return ""
    parts = []
    for row in shown:
        within = _mean([part for part in row.bins if part.last < context])
        after = _mean([part for part in row.bins if part.first >= context])
        parts.append(f"{within:.2f} and {after:.2f} {'' if row.encoding == OWN else 'with '}{label(row)}")
    return f"Nats per token within the model's context of {context:,} tokens, and beyond it: {'; '.join(parts)}."


def _mean(parts: Sequence[Bin]) -> float:
    """The mean loss of all tokens in these ranges of positions."""
    return sum(part.loss * part.tokens for part in parts) / sum(part.tokens for part in parts)


def _differences(page: Page, others: Sequence[Condition]) -> list[Any]:
    ranked = sorted(others, key=lambda row: -row.difference)
    rows: list[dict[str, Any]] = [
        {
            "condition": label(row),
            "loss": row.loss,
            "difference": row.difference,
            "low": row.difference - (row.half_width or 0.0),
            "high": row.difference + (row.half_width or 0.0),
            "half_width": row.half_width,
            "shown": plus_minus(row.difference, row.half_width),
        }
        for row in ranked
    ]
    table = page.rows("differences", rows[:DRAWN])
    some = f" The {DRAWN} largest of {len(rows)}." if len(rows) > DRAWN else ""
    chart = Chart(
        "Difference from the model as it is",
        f"Nats per token, with 95% intervals over sequences; right of the line is worse.{some}",
        table,
        charts.intervals(
            "condition", "difference", "low", "high", order=[label(row) for row in ranked[:DRAWN]],
            x_title="nats per token",
        ),
        in_figure=True,
    )  # fmt: skip
    columns = (
        Column("condition", "condition", "plain"),
        Column("loss", "loss", ".3f"),
        Column("shown", "difference", "interval", by="difference"),
    )
    every = page.rows("conditions", rows) if len(rows) > DRAWN else table
    sentence = "Nats per token; ± is the 95% interval of the difference, over sequences."
    return [chart, Listing("Loss under each", sentence, every, columns, folded=len(rows) > 8, top=16)]


def _by_position(page: Page, result: LossResult) -> list[Any]:
    own, others = result.conditions[0], result.conditions[1:]
    shown = [own, *sorted(others, key=lambda row: -row.difference)[:CURVES]]
    rows = [
        {
            "encoding": label(row),
            "position": (part.first + part.last) / 2,
            "loss": part.loss,
            "tokens": part.tokens,
            "first": part.first,
            "last": part.last,
        }
        for row in shown
        for part in row.bins
    ]
    words = "Mean loss of the tokens predicted from each range of positions, counted from 0 (logarithmic beyond 1)."
    if len(others) > CURVES:
        words += f" Shown: the model as it is and the {CURVES} conditions that cost most."
    spec = charts.line("position", "loss", colour="encoding", log_x=True, points=True, y_title="nats", height=280)
    spec = charts.from_zero(spec, max((part.last for part in own.bins), default=1))
    spec = charts.in_colours_of_encodings(spec, "encoding", [label(row) for row in shown])
    chart = Chart("Loss by position", words, page.rows("loss by position", rows), spec, in_figure=True)
    return [chart, _bins(page, result, shown)]


def _bins(page: Page, result: LossResult, shown: Sequence[Condition]) -> Listing:
    """The same in numbers, for a few conditions: one row for each range of positions."""
    rows = [
        {
            "positions": str(part.first) if part.first == part.last else f"{part.first}-{part.last}",
            "tokens": part.tokens,
            **{f"loss {i}": row.bins[n].loss for i, row in enumerate(shown)},
            "remark": "beyond the context" if result.context is not None and part.last >= result.context else "",
        }
        for n, part in enumerate(shown[0].bins)
    ]
    columns = [Column("positions", "positions", "plain"), Column("tokens", "tokens")]
    columns += [Column(f"loss {i}", label(row), ".3f") for i, row in enumerate(shown)]
    if any(row["remark"] for row in rows):
        columns.append(Column("remark", "remark", "plain"))
    sentence = "Position of the token that predicts, counted from 0."
    table = page.rows("loss by range of positions", rows)
    brief = ("positions", "tokens", *(f"loss {i}" for i in range(BESIDE)), "remark")
    return Listing("The same in numbers", sentence, table, tuple(columns), folded=True, top=32, brief=brief)
