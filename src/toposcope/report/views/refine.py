"""The view of `refine`: what an added diagonal buys on held-out text, beside a control of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Summary

if TYPE_CHECKING:
    from toposcope.studies.refine import Difference, RefineResult

TITLES = {
    "before": "the model as it is",
    "start": "with D at its start",
    "diagonal": "D tuned",
    "control": "control tuned",
}


def view(result: RefineResult, page: Page) -> None:
    """Add the sections of a tuning."""
    means = vars(result.held_out_mean)
    shown = {name: means[name] for name in ("before", "diagonal", "control")}
    page.facts += [
        *((f"{mean:.4f}", f"nats per token, {TITLES[name]}") for name, mean in shown.items()),
        (f"{result.parameters.diagonal:,}", "numbers tuned in D"),
        (f"{result.settings.steps:,}", "steps of each arm"),
    ]
    page.add("Summary", Summary(tuple(_summary(result))))
    page.add("On held-out text", *_held(page, result))
    page.add("Training", _training(page, result))
    page.add("How far D went", *_moved(page, result))
    page.add("Sequence by sequence", _sequences(page, result), detail=True)


def _summary(result: RefineResult) -> list[str]:
    said = [_difference(row) for row in result.differences if row.of != "start"]
    reach = [row.largest * row.start / row.bound for row in result.moved if row.bound]
    if result.settings.diagonal != "bound" and reach and max(reach) > 0:
        said.append(
            "The bound that would make logits positive at every offset is "
            f"{1 / max(reach):.0f} times the largest entry of D."
        )
    times = result.seconds_per_step
    norms = " (norms among both)" if result.settings.norms else ""
    said.append(
        f"D is a diagonal that adds x_i' D x_j to the logits ({result.settings.form} form). Its "
        f"{result.parameters.diagonal:,} numbers are all that was tuned; the control tunes "
        f"{result.parameters.control:,} factors of what attention reads{norms}."
    )
    said.append(f"{times.diagonal:.2f} s per step with D, {times.control:.2f} s with the control.")
    if result.directory is not None:
        said.append(f"Result and D are in {result.directory}: result.json, diagonal.safetensors.")
    return said


def _difference(row: Difference) -> str:
    of, against, mean, half = TITLES[row.of], TITLES[row.against], row.mean, row.half_width
    than = f"{of}, against {against}: {mean:+.4f}"
    than = than[0].upper() + than[1:]
    if half is None:
        return f"{than} nats per token, from one sequence."
    if not row.decided:
        return f"{than} ± {half:.4f} nats per token: these sequences do not tell them apart."
    return f"{than} ± {half:.4f} nats per token: {'better' if mean < 0 else 'worse'}."


def _held(page: Page, result: RefineResult) -> list[Any]:
    rows: list[dict[str, Any]] = [
        {
            "what": f"{TITLES[row.of]} less {TITLES[row.against]}",
            "difference": row.mean,
            "low": row.mean - (row.half_width or 0.0),
            "high": row.mean + (row.half_width or 0.0),
            "half_width": row.half_width,
            "says": "" if row.half_width is None else _word(row),
        }
        for row in result.differences
    ]
    spec = charts.intervals(
        "what", "difference", "low", "high", order=[row["what"] for row in rows],
        x_title="nats per token; below 0 is better",
    )  # fmt: skip
    means = [{"what": TITLES[name], "loss": mean} for name, mean in vars(result.held_out_mean).items()]
    words = f"Mean over {len(result.held_out.before)} held-out sequences with its 95% interval ({result.held_text})."
    table = page.rows("differences", rows)
    differing = (
        Column("what", "difference", "plain"), Column("difference", "nats per token", "+.4f"),
        Column("half_width", "±", ".4f"), Column("says", "verdict", "plain"),
    )  # fmt: skip
    return [
        Chart("Paired differences", words, table, spec, in_figure=True),
        Listing(
            "Losses", f"{result.held_text}, in nats per token.", page.rows("losses", means),
            (Column("what", "loss of", "plain"), Column("loss", "nats per token", ".4f")),
        ),
        Listing("Differences", "Paired, 95% over sequences; below 0 is better.", table, differing),
    ]  # fmt: skip


def _sequences(page: Page, result: RefineResult) -> Listing:
    losses = vars(result.held_out)
    rows = [dict(zip(("sequence", *losses), (n, *row), strict=True)) for n, row in enumerate(zip(*losses.values()))]  # noqa: B905
    columns = (Column("sequence", "sequence"), *(Column(name, TITLES[name], ".3f") for name in losses))
    return Listing("Sequence by sequence", "Loss in nats per token.", page.rows("held out", rows), columns)


def _word(row: Difference) -> str:
    return ("better" if row.mean < 0 else "worse") if row.decided else "undecided"


def _training(page: Page, result: RefineResult) -> Chart | None:
    rows = [
        {"arm": TITLES[arm], "step": step, "loss": loss}
        for arm, losses in vars(result.training).items()
        for step, loss in enumerate(_smooth(losses))
    ]
    if not rows:
        return None
    width = _width(len(result.training.diagonal))
    words = "Loss of each step's sequence, in nats per token"
    words += "." if width == 1 else f", as the mean of {width} steps."
    spec = charts.line("step", "loss", colour="arm", y_title="nats per token")
    return Chart("Loss while tuning", words, page.rows("training", rows), spec, in_figure=True)


def _width(steps: int) -> int:
    return max(1, steps // 40)


def _smooth(losses: Sequence[float]) -> list[float]:
    """A running mean: a step sees one sequence, and sequences differ far more than steps do."""
    width = _width(len(losses))
    return [sum(losses[i : i + width]) / width for i in range(len(losses) - width + 1)]


def _moved(page: Page, result: RefineResult) -> list[Any]:
    rows = [
        {**row, "over_bound": row["largest"] * row["start"] / row["bound"] if row["bound"] else None}
        for row in result.rows("moved")
    ]
    columns = (
        Column("layer", "layer"), Column("start", "start"), Column("least", "least", ".3f"),
        Column("median", "median", ".3f"), Column("largest", "largest", ".3f"), Column("bound", "bound"),
        Column("over_bound", "largest over bound"),
    )  # fmt: skip
    table = page.rows("moved", rows)
    words = "Entries of D after tuning, in units of its start: the median, and from the least to the largest."
    listing = Listing(
        "Layer by layer", "Start and bound in units of the logits; the rest in units of the start.", table, columns
    )
    if len(rows) < 2:
        return [listing]
    spec = charts.band("layer", "median", "least", "largest", y_title="in units of the start")
    return [Chart("Entries of D by layer", words, table, spec, in_figure=True), listing]
