"""The report of `refine`: what an added diagonal buys on held-out text, beside a control of the same size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Row, Summary

TITLES = {
    "before": "the model as it is",
    "start": "with D at its start",
    "diagonal": "D tuned",
    "control": "control tuned",
}


def build(result: Mapping[str, Any], page: Page) -> None:
    held, settings = result["held_out"], result["settings"]
    means = {name: sum(losses) / len(losses) for name, losses in held.items()}
    page.facts += [
        *((f"{means[name]:.4f}", f"nats a token, {TITLES[name]}") for name in ("before", "diagonal", "control")),
        (f"{result['parameters']['diagonal']:,}", "numbers tuned in D"),
        (f"{settings['steps']:,}", "steps of each arm"),
    ]
    page.add("What to make of it", Summary(tuple(_meaning(result))))
    page.add("On held-out text", *_held(page, result, means))
    page.add("Training", Row(tuple(_training(page, result))))
    page.add("How far D went", *_moved(page, result))


def _meaning(result: Mapping[str, Any]) -> list[str]:
    said = [
        "D is a diagonal that adds x_i' D x_j to the logits, and is all that was tuned; the control tunes as many "
        "other numbers in the same way. A difference below 0 is a gain."
    ]
    said += [_difference(row) for row in result["differences"] if row["of"] != "start"]
    settings = result["settings"]
    if settings["diagonal"] != "bound":
        reach = [row["largest"] * row["start"] / row["bound"] for row in result["moved"] if row["bound"]]
        if reach and max(reach) > 0:
            said.append(
                "The bound that would make logits positive at every offset is "
                f"{1 / max(reach):.0f} times the largest entry of D."
            )
    return said


def _difference(row: Mapping[str, Any]) -> str:
    of, against, mean, half = TITLES[row["of"]], TITLES[row["against"]], row["mean"], row["half_width"]
    than = f"{of}, against {against}: {mean:+.4f}"
    than = than[0].upper() + than[1:]
    if half is None:
        return f"{than} nats a token, from one sequence."
    if abs(mean) <= half:
        return f"{than} ± {half:.4f} nats a token: these sequences do not tell them apart."
    return f"{than} ± {half:.4f} nats a token: {'better' if mean < 0 else 'worse'}."


def _held(page: Page, result: Mapping[str, Any], means: Mapping[str, float]) -> list[Any]:
    rows = [
        {
            "what": f"{TITLES[row['of']]} less {TITLES[row['against']]}",
            "difference": row["mean"],
            "low": row["mean"] - (row["half_width"] or 0.0),
            "high": row["mean"] + (row["half_width"] or 0.0),
        }
        for row in result["differences"]
    ]
    spec = charts.intervals(
        "what",
        "difference",
        "low",
        "high",
        order=[row["what"] for row in rows],
        x_title="nats a token; below 0 is better",
    )
    sequences = [
        {"sequence": number, **{name: losses[number] for name, losses in result["held_out"].items()}}
        for number in range(len(result["held_out"]["before"]))
    ]
    columns = (Column("sequence", "sequence"), *(Column(name, TITLES[name]) for name in means))
    return [
        Chart(
            "Paired differences",
            f"Mean over {len(sequences)} held-out sequences with its 95 % interval ({result['held_text']}).",
            page.rows("differences", rows),
            spec,
        ),
        Listing(
            "Sequence by sequence", "Loss in nats a token.", page.rows("held out", sequences), columns, folded=True
        ),
    ]


def _training(page: Page, result: Mapping[str, Any]) -> list[Chart]:
    rows = [
        {"arm": TITLES[arm], "step": step, "loss": loss}
        for arm, losses in result["training"].items()
        for step, loss in enumerate(_smooth(losses))
    ]
    if not rows:
        return []
    width = _width(len(result["training"]["diagonal"]))
    words = "Loss of each step's sequence, in nats a token"
    words += "." if width == 1 else f", as the mean of {width} steps."
    spec = charts.line("step", "loss", colour="arm", y_title="nats a token")
    return [Chart("Loss while tuning", words, page.rows("training", rows), spec)]


def _width(steps: int) -> int:
    return max(1, steps // 40)


def _smooth(losses: Sequence[float]) -> list[float]:
    """A running mean: a step sees one sequence, and sequences differ far more than steps do."""
    width = _width(len(losses))
    return [sum(losses[i : i + width]) / width for i in range(len(losses) - width + 1)]


def _moved(page: Page, result: Mapping[str, Any]) -> list[Any]:
    rows = [
        {**row, "over_bound": row["largest"] * row["start"] / row["bound"] if row["bound"] else None}
        for row in result["moved"]
    ]
    columns = (
        Column("layer", "layer"), Column("start", "start"), Column("least", "least"), Column("median", "median"),
        Column("largest", "largest"), Column("bound", "bound"), Column("over_bound", "largest over bound"),
    )  # fmt: skip
    table = page.rows("moved", rows)
    words = "Entries of D after tuning, in units of its start: the median, and from the least to the largest."
    listing = Listing(
        "Layer by layer", "Start and bound in units of the logits; the rest in units of the start.", table, columns
    )
    if len(rows) < 2:
        return [listing]
    spec = charts.band("layer", "median", "least", "largest", y_title="in units of the start")
    return [Chart("Entries of D by layer", words, table, spec), listing]
