"""The report of training runs: learning curves with a band over seeds, and accuracy beside floor and ceiling.

A single run also shows its probes and what each of its heads is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import charts, of_lab_ablate
from toposcope.report.blocks import Chart, Column, Listing, Page, Row, Summary, count
from toposcope.report.of_sweep import best_words
from toposcope.runs.table import interval

SHARED = ("task", "encoding", "seed")  # runs of one task and curve differ in their seed only


def build_several(results: Sequence[Mapping[str, Any]], page: Page) -> None:
    """All runs together: those that differ in their seed only form one curve."""
    several = [run["config"] for run in results]
    order = sorted(
        range(len(results)), key=lambda i: (several[i]["task"], several[i]["encoding"], several[i]["seed"])
    )
    results = [results[i] for i in order]
    names = labels([run["config"] for run in results])
    rows = [
        {
            "task": run["config"]["task"],
            "model": name,
            "seed": run["config"]["seed"],
            "accuracy": run["accuracy"],
            "loss": run["loss"],
            "floor": run["floor"],
            "ceiling": run["ceiling"],
            "steps": run["step"],
            "parameters": run["parameters"],
            "finished": run["finished"],
        }
        for run, name in zip(results, names, strict=True)
    ]
    done = sum(row["finished"] for row in rows)
    told = [f"{count(len(rows), 'run')}, {done} of them finished.", *_best(rows)] if len(rows) > 1 else _one(rows[0])
    page.add("Runs" if len(rows) > 1 else "What to make of it", Summary(tuple(told)))
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [(name, run) for name, run in zip(names, results, strict=True) if run["config"]["task"] == task]
        curves = [_curves(page, task, mine, key) for key in ("accuracy", "loss")]
        page.add(f"Learning {task}", Row(tuple(curve for curve in curves if curve)) if any(curves) else None)
    columns = (
        Column("task", "task", "plain"), Column("model", "encoding", "plain"), Column("seed", "seed"),
        Column("accuracy", "accuracy", "percent"), Column("floor", "floor", "percent"),
        Column("ceiling", "ceiling", "percent"), Column("loss", "loss"), Column("steps", "steps"),
        Column("parameters", "parameters"), Column("finished", "finished", "text"),
    )  # fmt: skip
    words = "Accuracy on the fixed test sentences, beside what the task gives without and with all it asks for."
    page.add("Every run", Listing("Training runs", words, page.rows("training runs", rows), columns))
    if len(results) == 1:
        _single(page, results[0])


def labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each run's model: its encoding, and every other setting in which these runs differ."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in SHARED)
    varying = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    return [
        ", ".join([str(config["encoding"]), *(f"{key.replace('_', ' ')} {config.get(key)}" for key in varying)])
        for config in configs
    ]


def _best(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        means: dict[str, list[float]] = {}
        for row in rows:
            if row["task"] == task and row["accuracy"] is not None:
                means.setdefault(row["model"], []).append(row["accuracy"])
        if not means:
            continue
        cells = [
            {"encoding": name, "mean": mean, "half": half, "floor": None, "ceiling": None}
            for name, (mean, half) in ((name, interval(each)) for name, each in means.items())
        ]
        found.append(best_words(task, cells))
    return found


def _one(row: Mapping[str, Any]) -> list[str]:
    end = "It is finished" if row["finished"] else "It is not finished: the same command goes on"
    said = [f"{end}, after {row['steps']:,} steps."]
    if row["accuracy"] is not None:
        said.append(
            f"{row['accuracy']:.1%} of the test's answers are right. Without the task's point {row['floor']:.1%} can "
            f"be reached (its floor), at best {row['ceiling']:.1%} (its ceiling)."
        )
        if row["accuracy"] <= row["floor"]:
            said.append("That is not above the floor: the task has not been learned.")
    return said


def _curves(page: Page, task: str, runs: Sequence[tuple[str, Mapping[str, Any]]], key: str) -> Chart | None:
    """The mean over seeds at each step, between the least and the largest."""
    at: dict[tuple[str, int], list[float]] = {}
    for name, run in runs:
        for point in run["curve"]:
            if point.get(key) is not None:
                at.setdefault((name, point["step"]), []).append(point[key])
    rows = [
        {"encoding": name, "step": step, key: sum(v) / len(v), "least": min(v), "most": max(v), "seeds": len(v)}
        for (name, step), v in sorted(at.items())
    ]
    if not rows:
        return None
    seeds = len({run["config"]["seed"] for _, run in runs})
    words = "Accuracy on the first test sentences" if key == "accuracy" else "Loss on the sentences of that step"
    words += "." if seeds == 1 else f": mean over {seeds} seeds; the band reaches from the least to the largest."
    many = len({name for name, _ in runs}) > charts.MANY
    spec = charts.band("step", key, "least", "most", colour="encoding", y_title=key, faint=many)
    title = "Accuracy by step" if key == "accuracy" else "Training loss by step"
    return Chart(title, words, page.rows(f"{task} {key}", rows), spec)


# ------------------------------------------------------------------ one run
def _single(page: Page, run: Mapping[str, Any]) -> None:
    if run["accuracy"] is not None:
        page.facts += [
            (f"{run['accuracy']:.1%}", f"accuracy on {run['config']['task']}"),
            (f"{run['floor']:.1%}", "floor of the task"),
            (f"{run['ceiling']:.1%}", "ceiling of the task"),
            (f"{run['parameters']:,}", "parameters"),
            (f"{run['step']:,}", "steps"),
        ]
    probes = (_gradients(page, run), _contraction(page, run), _sharpness(page, run))
    page.add("On the way", Row(tuple(each for each in probes if each)) if any(probes) else None)
    if run.get("ablation"):
        of_lab_ablate.sections(page, run["ablation"])


def _gradients(page: Page, run: Mapping[str, Any]) -> Chart | None:
    rows = [
        {"step": point["step"], "layer": f"layer {layer}", "norm": norm}
        for point in run["gradients"]
        for layer, norm in enumerate(point["layers"])
    ]
    if not rows:
        return None
    words = "Norm of the loss's gradient with respect to each layer's weights."
    spec = charts.line("step", "norm", colour="layer", points=True)
    return Chart("Gradients", words, page.rows("gradients", rows), spec)


def _contraction(page: Page, run: Mapping[str, Any]) -> Chart | None:
    rows = []
    for point in run["spectra"]:
        for layer, heads in enumerate(point["rho"]):
            known = [value for value in heads if value is not None]
            if known:
                rows.append(
                    {
                        "step": point["step"],
                        "layer": f"layer {layer}",
                        "rho": sum(known) / len(known),
                        "least": min(known),
                        "most": max(known),
                    }
                )
    if not rows:
        return None
    words = "Norm of the logits over that without position: mean over heads, from the least to the largest."
    spec = charts.band("step", "rho", "least", "most", colour="layer", y_title="contraction")
    return Chart("Contraction", words, page.rows("contraction", rows), spec)


def _sharpness(page: Page, run: Mapping[str, Any]) -> Chart | None:
    rows = [{"step": point["step"], "eigenvalue": point["value"]} for point in run["hessian"]]
    if not rows:
        return None
    words = "The largest eigenvalue of the loss's Hessian."
    return Chart("Sharpness", words, page.rows("sharpness", rows), charts.line("step", "eigenvalue", points=True))
