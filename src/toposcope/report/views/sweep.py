"""The view of `sweep`: accuracy of every encoding on every task, between the task's floor and ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Paragraphs, Summary, count
from toposcope.report.views.train import FLOOR, best, learning
from toposcope.runs.sweep import SweepCell, SweepResult, SweptRun
from toposcope.runs.words import duration, title

ABREAST = 3  # tasks beside each other in the table, so that it fits in 80 columns


def view(result: SweepResult, page: Page) -> None:
    """Add the sections of a sweep."""
    cells, runs = result.cells, result.runs
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    encodings = list(dict.fromkeys(cell.encoding for cell in cells))
    page.title = page.title or "A sweep of encodings and tasks"
    done = sum(run.status == "done" for run in runs)
    page.facts += [
        (str(len(runs)), "runs"), (str(done), "done"), (str(len(tasks)), "task" if len(tasks) == 1 else "tasks"),
        (str(len(encodings)), "encoding" if len(encodings) == 1 else "encodings"),
    ]  # fmt: skip
    page.add("Summary", Summary(tuple(_summary(result, tasks, len(runs) - done))))
    if cells:
        page.add("Accuracy", *_accuracies(page, cells, tasks, encodings))
    failed = [run for run in runs if run.status == "failed"]
    page.add("Failed runs", Paragraphs(tuple(_failed(failed))) if failed else None)
    for task in tasks:
        page.add(f"Accuracy: {task}", _chart(page, task, [cell for cell in cells if cell.task == task]))
    learning(page, [(run.config, run.curve) for run in runs if run.curve], in_figure=False)
    if cells:
        page.add("All accuracies", _every_cell(page, result), detail=True)


def _summary(result: SweepResult, tasks: Sequence[str], left: int) -> list[str]:
    said = []
    for task in tasks:
        mine = [cell for cell in result.cells if cell.task == task]
        found = [(cell.encoding, cell.mean, cell.half) for cell in mine]
        said.append(best(task, found, mine[0].floor, mine[0].ceiling))
    if not result.cells:
        said.append("No run is done yet.")
    if left:
        said.append(f"{count(left, 'run')} not done; the same command tries again.")
    store = result.provenance.options.get("store", "runs")
    took = duration(result.provenance.seconds)
    said.append(f"{count(len(result.runs), 'run')} in the store {store}, see 'toposcope runs'; it took {took}.")
    return said


def _accuracies(
    page: Page, cells: Sequence[SweepCell], tasks: Sequence[str], encodings: Sequence[str]
) -> list[Listing]:
    """Encodings down, tasks across: mean ± half (seeds), and each task's bounds below."""
    at = {(cell.task, cell.encoding): cell for cell in cells}
    rows: list[dict[str, str]] = [
        {"encoding": encoding, **{task: _cell(at.get((task, encoding))) for task in tasks}} for encoding in encodings
    ]
    for name in ("floor", "ceiling"):
        bounds = {task: next(getattr(cell, name) for cell in cells if cell.task == task) for task in tasks}
        rows.append({"encoding": name, **{task: _number(bound) for task, bound in bounds.items()}})
    table = page.rows("accuracy by task", rows)
    words = f"In %: mean ± half of Student's 95% interval (seeds); {FLOOR}."
    found = []
    for first in range(0, len(tasks), ABREAST):
        some = tasks[first : first + ABREAST]
        columns = (Column("encoding", "encoding", "wrap"), *(Column(task, task, "plain") for task in some))
        found.append(Listing("Encodings and tasks", "" if first else words, table, columns, top=60))
    return found


def _cell(cell: SweepCell | None) -> str:
    if cell is None:
        return "    -"
    half = "     " if cell.half is None else f"± {100 * cell.half:.1f}"
    return f"{100 * cell.mean:5.1f} {half:<6} {f'({cell.n})':>3}"


def _number(value: float | None) -> str:
    return "    -" if value is None else f"{100 * value:5.1f}"


def _failed(failed: Sequence[SweptRun]) -> list[str]:
    said = []
    for run in failed:
        words = (run.words or "").strip().splitlines() or ["no words"]
        said.append(f"{run.key}  {title(run.config)}: {words[-1]}")
    return [*said, "'toposcope runs show KEY' prints all they said."]


def _chart(page: Page, task: str, cells: Sequence[SweepCell]) -> Chart:
    rows: list[dict[str, Any]] = [
        {
            "encoding": cell.encoding,
            "accuracy": cell.mean,
            "low": max(cell.mean - (cell.half or 0.0), 0.0),  # no accuracy is beyond these
            "high": min(cell.mean + (cell.half or 0.0), 1.0),
            "seeds": cell.n,
        }
        for cell in sorted(cells, key=lambda cell: -cell.mean)
    ]
    spec = charts.intervals(
        "encoding", "accuracy", "low", "high", order=[row["encoding"] for row in rows], reference=None, x_format="%"
    )
    for bound in (cells[0].floor, cells[0].ceiling):
        if bound is not None:
            rule = {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"x": {"datum": bound}}}
            spec["layer"].append(rule)
    words = (
        "Mean accuracy with its 95% interval over seeds, within 0 and 100%; dashed lines are the task's floor and "
        "ceiling."
    )
    return Chart(f"Who learns {task}", words, page.rows(f"accuracy {task}", rows), spec, in_figure=True)


def _every_cell(page: Page, result: SweepResult) -> Listing:
    columns = (
        Column("task", "task", "plain"), Column("encoding", "encoding", "plain"), Column("n", "seeds"),
        Column("mean", "mean", "percent"), Column("half", "±", "percent"), Column("least", "least", "percent"),
        Column("most", "most", "percent"), Column("floor", "floor", "percent"),
        Column("ceiling", "ceiling", "percent"), Column("seconds", "seconds a run"),
    )  # fmt: skip
    words = f"Mean over seeds ± half of Student's 95% interval; {FLOOR}; ceiling: best possible score."
    return Listing("Encodings and tasks", words, page.rows("accuracies", result.rows("cells")), columns)
