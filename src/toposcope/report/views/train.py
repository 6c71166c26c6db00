"""The view of training runs: accuracy beside floor and ceiling, learning curves with a band over seeds.

A single run also shows its probes and what each of its heads is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.core.statistics import interval
from toposcope.lab.result import CurvePoint, TrainResult
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Row, Summary, count
from toposcope.report.views import lab_ablate
from toposcope.runs.words import duration, title

FLOOR = "floor: best score without solving the task"
AXES = {"accuracy": "accuracy", "loss": "loss, nats"}  # of curves
SHARED = ("task", "encoding", "seed")  # runs of one task and curve differ in their seed only
Learned = tuple[Mapping[str, Any], Sequence[CurvePoint]]  # a run's configuration, and its curve


def view(result: TrainResult, page: Page) -> None:
    """Add the sections of one run."""
    config = result.config
    task = _said(config, "task")
    page.title = page.title or f"Training run: {title(config)}"
    page.line = page.line or ", ".join(str(config[name]) for name in ("profile", "variant") if name in config)
    if result.accuracy is not None:
        page.facts += [
            (f"{result.accuracy:.1%}", f"accuracy on {task}"),
            (f"{result.floor:.1%}", "floor"),
            (f"{result.ceiling:.1%}", "ceiling"),
            (f"{result.parameters:,}", "parameters"),
            (f"{result.step:,}", "steps"),
        ]
    page.add("Summary", Summary(tuple(_summary(result))))
    learning(page, [(config, result.curve)])
    probes = [each for each in (_gradients(page, result), _ratios(page, result), _sharpness(page, result)) if each]
    page.add("While training", Row(tuple(probes)) if probes else None)
    if result.ablation is not None:
        lab_ablate.sections(page, result.ablation, brief=True)


def view_several(results: Sequence[TrainResult], page: Page) -> None:
    """All runs together: those that differ in their seed only form one curve."""
    results = sorted(results, key=lambda each: tuple(_said(each.config, name) for name in SHARED))
    names = labels([each.config for each in results])
    tasks = list(dict.fromkeys(_said(each.config, "task") for each in results))
    page.title = page.title or f"{len(results)} training runs: {', '.join(tasks)}"
    done = sum(each.finished for each in results)
    told = [f"{count(len(results), 'run')}, {done} of them finished."]
    for task in tasks:
        means: dict[str, list[float]] = {}
        for name, each in zip(names, results, strict=True):
            if _said(each.config, "task") == task and each.accuracy is not None:
                means.setdefault(name, []).append(each.accuracy)
        if means:
            told.append(best(task, [(name, *interval(values)) for name, values in means.items()]))
    page.add("Summary", Summary(tuple(told)))
    learning(page, [(each.config, each.curve) for each in results])
    _every(page, results, names)


def best(
    task: str, found: Sequence[tuple[str, float, float | None]], floor: float | None = None,
    ceiling: float | None = None,
) -> str:  # fmt: skip
    """Which encoding does best, with its interval over seeds, and which ones these seeds do not tell from it."""
    ranked = sorted(found, key=lambda each: -each[1])
    (name, mean, half), others = ranked[0], ranked[1:]
    between = ""
    if floor is not None and ceiling is not None and ceiling > floor:
        share = (mean - floor) / (ceiling - floor)
        between = f", {share:.0%} of the way from floor to ceiling" if share > 0 else ", not above the task's floor"
    spread = "" if half is None else f" ± {half:.1%}"
    words = f"{task}: {name} {'does best with' if others else 'reaches'} {mean:.1%}{spread}{between}"
    if half is None:
        return f"{words} (one seed: no interval{', so no order is told' if others else ''})."
    near = [each for each, value, width in others if width is None or value + width >= mean - half]
    return f"{words}." + (f" These seeds cannot tell it from {_any_of(near)}." if near else "")


def labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each run's model: its encoding, and every other setting in which these runs differ."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in SHARED)
    varying = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    return [
        ", ".join([_said(config, "encoding"), *(f"{key.replace('_', ' ')} {config.get(key)}" for key in varying)])
        for config in configs
    ]


def _said(config: Mapping[str, Any], name: str) -> str:
    return str(config.get(name, "?"))


def _any_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def learning(page: Page, runs: Sequence[Learned], *, in_figure: bool = True) -> None:
    """Accuracy and loss by step, task by task: the mean over seeds, between the least and the largest."""
    names = labels([config for config, _ in runs])
    for task in dict.fromkeys(_said(config, "task") for config, _ in runs):
        mine = [(name, run) for name, run in zip(names, runs, strict=True) if _said(run[0], "task") == task]
        curves = [curve for curve in (_curves(page, task, mine, key, in_figure) for key in AXES) if curve]
        page.add(f"Learning {task}", Row(tuple(curves)) if curves else None)


def _curves(page: Page, task: str, runs: Sequence[tuple[str, Learned]], key: str, in_figure: bool) -> Chart | None:
    at: dict[tuple[str, int], list[float]] = {}
    for name, (_, curve) in runs:
        for point in curve:
            at.setdefault((name, point.step), []).append(getattr(point, key))
    rows = [
        {"encoding": name, "step": step, key: sum(v) / len(v), "least": min(v), "most": max(v), "seeds": len(v)}
        for (name, step), v in sorted(at.items())
    ]
    if not rows:
        return None
    seeds = len({_said(config, "seed") for _, (config, _) in runs})
    words = "Accuracy on the first test sentences" if key == "accuracy" else "Loss on the sentences of that step"
    words += "." if seeds == 1 else f": mean over {seeds} seeds; the band reaches from the least to the largest."
    names = list(dict.fromkeys(name for name, _ in runs))
    spec = charts.band(
        "step", key, "least", "most", colour="encoding", y_title=AXES[key], faint=len(names) > charts.MANY
    )
    spec = charts.in_colours_of_encodings(spec, "encoding", names)
    title = "Accuracy by step" if key == "accuracy" else "Training loss by step"
    return Chart(title, words, page.rows(f"{task} {key}", rows), spec, in_figure=in_figure)


def _every(page: Page, results: Sequence[TrainResult], names: Sequence[str]) -> None:
    rows = [
        {
            "task": _said(each.config, "task"), "model": name, "seed": _said(each.config, "seed"),
            "accuracy": each.accuracy, "loss": each.loss, "floor": each.floor, "ceiling": each.ceiling,
            "steps": each.step, "parameters": each.parameters, "finished": each.finished,
        }
        for each, name in zip(results, names, strict=True)
    ]  # fmt: skip
    columns = (
        Column("task", "task", "plain"), Column("model", "encoding", "plain"), Column("seed", "seed", "plain"),
        Column("accuracy", "accuracy", "percent"), Column("floor", "floor", "percent"),
        Column("ceiling", "ceiling", "percent"), Column("loss", "loss"), Column("steps", "steps"),
        Column("parameters", "parameters"), Column("finished", "finished", "text"),
    )  # fmt: skip
    brief = ("task", "model", "seed", "accuracy", "floor", "ceiling")
    words = f"Accuracy on the fixed test sentences; {FLOOR}."
    page.add("Every run", Listing("Training runs", words, page.rows("training runs", rows), columns, brief=brief))


# ------------------------------------------------------------------ one run
def _summary(result: TrainResult) -> list[str]:
    said = []
    if result.accuracy is not None and result.loss is not None:
        said.append(
            f"{result.accuracy:.1%} of the test's answers are right (floor {result.floor:.1%}, ceiling "
            f"{result.ceiling:.1%}; {FLOOR}), with a loss of {result.loss:.3g}."
        )
        if result.accuracy <= result.floor:
            said.append("That is not above the floor: the task has not been learned.")
    if not result.finished:
        said.append(f"It stopped after {result.step:,} of {result.steps:,} steps: the same command goes on.")
    if result.curve:
        points = result.curve[1::2] or result.curve  # half of the twenty: they fit on a line
        said.append(f"Accuracy on the way, in %: {' '.join(f'{100 * point.accuracy:.0f}' for point in points)}.")
    when = "trained in" if result.trained_now else "trained earlier, in"
    said.append(f"{result.step:,} steps, {result.parameters:,} parameters, {when} {duration(result.seconds)}.")
    if result.directory is not None:
        said.append(f"Run {result.key} in {result.directory}")
        said.append(f"The model, for scan, check and the others: {result.directory}/model")
    return said


def _gradients(page: Page, result: TrainResult) -> Chart | None:
    rows = [
        {"step": point.step, "layer": f"layer {layer}", "norm": norm}
        for point in result.gradients
        for layer, norm in enumerate(point.layers)
    ]
    if not rows:
        return None
    words = "Norm of the loss's gradient with respect to each layer's weights."
    spec = charts.line("step", "norm", colour="layer", points=True)
    return Chart("Gradients", words, page.rows("gradients", rows), spec)


def _ratios(page: Page, result: TrainResult) -> Chart | None:
    rows = []
    for point in result.spectra:
        for layer, heads in enumerate(point.rho):
            known = [value for value in heads if value is not None]
            if known:
                bounds = {"rho": sum(known) / len(known), "least": min(known), "most": max(known)}
                rows.append({"step": point.step, "layer": f"layer {layer}", **bounds})
    if not rows:
        return None
    words = "Norm of the logits over that without position: mean over heads, from the least to the largest."
    spec = charts.band("step", "rho", "least", "most", colour="layer", y_title="logit norm ratio")
    return Chart("Logit norm ratio", words, page.rows("logit norm ratio", rows), spec)


def _sharpness(page: Page, result: TrainResult) -> Chart | None:
    rows = [{"step": point.step, "eigenvalue": point.value} for point in result.hessian]
    if not rows:
        return None
    words = "The largest eigenvalue of the loss's Hessian."
    return Chart("Sharpness", words, page.rows("sharpness", rows), charts.line("step", "eigenvalue", points=True))
