"""The report of `sweep`: accuracy of every encoding on every task, between the task's floor and ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Summary


def build(result: Mapping[str, Any], page: Page) -> None:
    cells = result["cells"]
    runs = result["runs"]
    done = sum(run["status"] == "done" for run in runs)
    page.facts += [
        (str(len(runs)), "runs"),
        (str(done), "done"),
        (str(len({cell["task"] for cell in cells})), "tasks"),
        (str(len({cell["encoding"] for cell in cells})), "encodings"),
    ]
    page.add("What to make of it", Summary(tuple(_meaning(cells, len(runs) - done))))
    for task in dict.fromkeys(cell["task"] for cell in cells):
        page.add(f"Accuracy: {task}", _accuracy(page, task, [cell for cell in cells if cell["task"] == task]))
    if cells:
        columns = (
            Column("task", "task", "plain"),
            Column("encoding", "encoding", "plain"),
            Column("n", "seeds"),
            Column("mean", "mean", "percent"),
            Column("half", "±", "percent"),
            Column("least", "least", "percent"),
            Column("most", "most", "percent"),
            Column("floor", "floor", "percent"),
            Column("ceiling", "ceiling", "percent"),
            Column("seconds", "seconds a run"),
        )
        words = (
            "Mean over seeds ± half of Student's 95 % interval; floor: the task's point missed; ceiling: all known."
        )
        page.add("All accuracies", Listing("Encodings and tasks", words, page.rows("accuracies", cells), columns))


def _meaning(cells: Sequence[Mapping[str, Any]], open_: int) -> list[str]:
    sentences = []
    for task in dict.fromkeys(cell["task"] for cell in cells):
        sentences.append(best_words(task, [cell for cell in cells if cell["task"] == task]))
    if open_:
        sentences.append(f"{open_} runs are not done; the same command does them.")
    return sentences or ["No run is done yet."]


def best_words(task: str, cells: Sequence[Mapping[str, Any]]) -> str:
    """Who does best, with its interval over seeds, and from whom these seeds do not tell it."""
    ranked = sorted(cells, key=lambda cell: -cell["mean"])
    best, others = ranked[0], ranked[1:]
    floor, ceiling = best["floor"], best["ceiling"]
    between = ""
    if floor is not None and ceiling is not None and ceiling > floor:
        share = (best["mean"] - floor) / (ceiling - floor)
        between = f", {share:.0%} of the way from floor to ceiling" if share > 0 else ", not above the task's floor"
    spread = "" if best["half"] is None else f" ± {best['half']:.1%}"
    verb = "does best with" if others else "reaches"
    words = f"{task}: {best['encoding']} {verb} {best['mean']:.1%}{spread}{between}"
    if best["half"] is None:
        return f"{words} (one seed: no interval{', so no order is told' if others else ''})."
    low = best["mean"] - best["half"]
    near = [cell["encoding"] for cell in others if cell["half"] is None or cell["mean"] + cell["half"] >= low]
    return f"{words}." + (f" These seeds do not tell it from {', '.join(near)}." if near else "")


def _accuracy(page: Page, task: str, cells: Sequence[Mapping[str, Any]]) -> Chart:
    rows = [
        {
            "encoding": cell["encoding"],
            "accuracy": cell["mean"],
            "low": cell["mean"] - (cell["half"] or 0.0),
            "high": cell["mean"] + (cell["half"] or 0.0),
            "seeds": cell["n"],
        }
        for cell in sorted(cells, key=lambda cell: -cell["mean"])
    ]
    spec = charts.intervals(
        "encoding", "accuracy", "low", "high", order=[row["encoding"] for row in rows], reference=None, x_format="%"
    )
    for bound in ("floor", "ceiling"):
        value = next((cell[bound] for cell in cells if cell[bound] is not None), None)
        if value is not None:
            spec["layer"].append(
                {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"x": {"datum": value}}}
            )
    words = "Mean accuracy with its 95 % interval over seeds; dashed lines are the task's floor and ceiling."
    return Chart(f"Who learns {task}", words, page.rows(f"accuracy {task}", rows), spec)
