"""The report of training runs: learning curves with a band over seeds, and accuracy beside floor and ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Says, count


def build_several(results: Sequence[Mapping[str, Any]], page: Page) -> None:
    """All runs together: those that differ in their seed only form one curve."""
    rows = [
        {
            "task": run["config"]["task"],
            "encoding": run["config"]["encoding"],
            "seed": run["config"]["seed"],
            "accuracy": run["accuracy"],
            "loss": run["loss"],
            "floor": run["floor"],
            "ceiling": run["ceiling"],
            "steps": run["step"],
            "parameters": run["parameters"],
            "finished": run["finished"],
        }
        for run in results
    ]
    done = sum(row["finished"] for row in rows)
    page.add("Runs", Says((f"{count(len(rows), 'run')}, {done} of them finished.", *_best(rows))))
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [run for run in results if run["config"]["task"] == task]
        for key, title in (("accuracy", "Accuracy"), ("loss", "Training loss")):
            page.add(f"{title} while learning {task}", _curves(page, task, mine, key))
    columns = (
        Column("task", "task", "plain"), Column("encoding", "encoding", "plain"), Column("seed", "seed"),
        Column("accuracy", "accuracy", "percent"), Column("floor", "floor", "percent"),
        Column("ceiling", "ceiling", "percent"), Column("loss", "loss"), Column("steps", "steps"),
        Column("parameters", "parameters"), Column("finished", "finished", "text"),
    )  # fmt: skip
    words = "Accuracy on the fixed test sentences, beside what the task gives without and with all it asks for."
    page.add("Every run", Listing("Training runs", words, page.rows("training runs", rows), columns))


def _best(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        means: dict[str, list[float]] = {}
        for row in rows:
            if row["task"] == task and row["accuracy"] is not None:
                means.setdefault(row["encoding"], []).append(row["accuracy"])
        if means:
            ranked = sorted(means, key=lambda name: -sum(means[name]) / len(means[name]))
            top = means[ranked[0]]
            found.append(
                f"{task}: {ranked[0]} is best, with {sum(top) / len(top):.1%} over {count(len(top), 'seed')}."
            )
    return found


def _curves(page: Page, task: str, runs: Sequence[Mapping[str, Any]], key: str) -> Chart | None:
    """The mean over seeds at each step, between the least and the largest."""
    at: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        for point in run["curve"]:
            if point.get(key) is not None:
                at.setdefault((run["config"]["encoding"], point["step"]), []).append(point[key])
    rows = [
        {"encoding": encoding, "step": step, key: sum(v) / len(v), "least": min(v), "most": max(v), "seeds": len(v)}
        for (encoding, step), v in sorted(at.items())
    ]
    if not rows:
        return None
    seeds = len({run["config"]["seed"] for run in runs})
    words = f"Mean over {count(seeds, 'seed')}; the band reaches from the least to the largest."
    spec = charts.band("step", key, "least", "most", colour="encoding", y_title=key)
    return Chart(f"{task}: {key} by step", words, page.rows(f"{task} {key}", rows), spec)
