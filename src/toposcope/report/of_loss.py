"""The report of `loss`: what a text costs by position, and what other encodings change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Says, count

MOST = 24  # conditions in a picture; the table holds all


def build(result: Mapping[str, Any], page: Page) -> None:
    conditions = result["conditions"]
    own, others = conditions[0], conditions[1:]
    page.facts += [
        (f"{own['loss']:.3f}", f"nats per {'hidden token' if result['kind'] == 'masked token' else 'token'}"),
        (str(len(own["by_sequence"])), "sequences"),
        (str(sum(part["tokens"] for part in own["bins"])), "tokens"),
    ]
    page.add("Summary", Says(tuple(_meaning(result))))
    if others:
        page.add("With another encoding", *_differences(page, others))
    shown = [own, *sorted(others, key=lambda row: -row["difference"])[:5]]
    rows = [
        {
            "encoding": label(row),
            "position": (part["first"] + part["last"]) / 2,
            "loss": part["loss"],
            "tokens": part["tokens"],
            "first": part["first"],
            "last": part["last"],
        }
        for row in shown
        for part in row["bins"]
        if part["loss"] is not None
    ]
    words = "Mean loss of the tokens predicted from each range of positions, counted from 0 (logarithmic beyond 1)."
    if len(others) > 5:
        words += " Shown: the model as it is and the five conditions that cost most."
    table = page.rows("loss by position", rows)
    spec = charts.line("position", "loss", colour="encoding", log_x=True, points=True, y_title="nats", height=280)
    spec = charts.from_zero(spec, max((part["last"] for part in own["bins"]), default=1))
    page.add("By position", Chart("Loss by position", words, table, spec))


def label(row: Mapping[str, Any]) -> str:
    """A condition's name: its encoding, and where it was put."""
    return str(row["encoding"]) if row["where"] is None else f"{row['encoding']} in {row['where']}"


def _meaning(result: Mapping[str, Any]) -> list[str]:
    own, others = result["conditions"][0], result["conditions"][1:]
    sentences = [f"{result['model']} on {result['text']}: {own['loss']:.3f} nats per token as it is."]
    for row in sorted(others, key=lambda row: -abs(row["difference"]))[:4]:
        half = row["half_width"]
        if half is None:
            words = f"changes it by {row['difference']:+.4f} (one sequence: no interval)"
        elif abs(row["difference"]) <= half:
            words = f"changes nothing that these sequences could show ({row['difference']:+.4f} ± {half:.4f})"
        else:
            verb = "costs" if row["difference"] > 0 else "saves"
            words = f"{verb} {abs(row['difference']):.4f} ± {half:.4f}"
        sentences.append(f"{label(row)} {words}.")
    bins = [part for part in own["bins"] if part["loss"] is not None]
    if len(bins) > 2:
        first, last = bins[0], bins[-1]
        sentences.append(
            f"Predicted from position {first['first']} a token costs {_cost(first)}, "
            f"from positions {last['first']} to {last['last']} {_cost(last)}."
        )
    return sentences


def _cost(part: Mapping[str, Any]) -> str:
    """The mean loss of a range of positions with its interval, or with the number of tokens it stands on."""
    half = part.get("half_width")
    spread = f" ± {half:.2f}" if half is not None else ""
    return f"{part['loss']:.2f}{spread} ({count(part['tokens'], 'token')})"


def _differences(page: Page, others: Sequence[Mapping[str, Any]]) -> list[Any]:
    rows = [
        {
            "condition": label(row),
            "loss": row["loss"],
            "difference": row["difference"],
            "low": row["difference"] - (row["half_width"] or 0.0),
            "high": row["difference"] + (row["half_width"] or 0.0),
            "half_width": row["half_width"],
        }
        for row in others
    ]
    ranked = sorted(rows, key=lambda row: -row["difference"])
    table = page.rows("differences", ranked[:MOST])
    some = f" The {MOST} largest of {len(rows)}." if len(rows) > MOST else ""
    chart = Chart(
        "Difference from the model as it is",
        f"Nats per token, with 95 % intervals over sequences; right of the line is worse.{some}",
        table,
        charts.intervals(
            "condition", "difference", "low", "high", order=[row["condition"] for row in ranked[:MOST]],
            x_title="nats per token",
        ),
    )  # fmt: skip
    columns = (
        Column("condition", "condition", "plain"), Column("loss", "loss"), Column("difference", "difference"),
        Column("half_width", "±"),
    )  # fmt: skip
    every = page.rows("conditions", rows) if len(rows) > MOST else table
    return [chart, Listing("All conditions", "Mean loss in nats per token.", every, columns, folded=len(rows) > 8)]
