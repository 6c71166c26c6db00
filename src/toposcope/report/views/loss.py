"""The view of `loss`: what a text costs by position, and what other encodings change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toposcope.core.statistics import plus_minus, told_from_zero
from toposcope.models.loss import Bin, Condition, LossResult
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Summary, count

DRAWN = 24  # conditions in a picture; the table holds all
TOLD = 4  # conditions that the summary tells, those that make a sure difference first
CURVES = 5  # conditions beside the model as it is, by position
BESIDE = 4  # of these in a narrow table


def view(result: LossResult, page: Page) -> None:
    """Add the sections of a loss."""
    own, others = result.conditions[0], result.conditions[1:]
    page.facts += [
        (f"{own.loss:.3f}", f"nats per {'hidden token' if result.predicts == 'masked token' else 'token'}"),
        (str(len(own.by_sequence)), "sequence" if len(own.by_sequence) == 1 else "sequences"),
        (str(sum(part.tokens for part in own.bins)), "tokens"),
    ]
    page.add("Summary", Summary(tuple(_summary(result))))
    if others:
        page.add("With another encoding", *_differences(page, others))
    page.add("By position", *_by_position(page, result))


def label(row: Condition) -> str:
    """A condition's name: its encoding, and where it was put."""
    return row.encoding if row.where is None else f"{row.encoding} in {row.where}"


def _summary(result: LossResult) -> list[str]:
    own, others = result.conditions[0], result.conditions[1:]
    sentences = [f"{result.text}: {own.loss:.3f} nats per token as it is."]
    for row in sorted(others, key=lambda row: (not _told(row), -abs(row.difference)))[:TOLD]:
        half = row.half_width
        if half is None:
            words = f"changes it by {plus_minus(row.difference, None)} nats per token (one sequence: no interval)"
        elif not _told(row):
            words = f"makes no difference beyond noise ({plus_minus(row.difference, half)}); use more --sequences"
        else:
            verb = "costs" if row.difference > 0 else "saves"
            words = f"{verb} {plus_minus(abs(row.difference), half, signed=False)} nats per token"
        sentences.append(f"Encoding {label(row)} {words}.")
    if len(own.bins) > 2:
        first, last = own.bins[0], own.bins[-1]
        sentences.append(
            f"A token predicted from position {first.first} costs {_cost(first)}; "
            f"one from positions {last.first} to {last.last} costs {_cost(last)}."
        )
    return sentences


def _told(row: Condition) -> bool:
    """Whether the difference is beyond its interval over sequences."""
    return row.half_width is not None and told_from_zero(row.difference, row.half_width)


def _cost(part: Bin) -> str:
    """The mean loss of a range of positions with its interval, and the number of tokens it stands on."""
    return f"{plus_minus(part.loss, part.half_width, signed=False)} ({count(part.tokens, 'token')})"


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
        f"Nats per token, with 95 % intervals over sequences; right of the line is worse.{some}",
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
    sentence = "Nats per token; ± is the 95 % interval of the difference, over sequences."
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
