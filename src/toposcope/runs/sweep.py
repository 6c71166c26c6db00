"""`toposcope.sweep`: tasks x encodings x seeds, on the cores of this machine or on a Ray cluster."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toposcope.core.progress import Progress
from toposcope.core.result import Provenance, Result
from toposcope.core.sealed import stored_values
from toposcope.core.statistics import interval
from toposcope.lab.result import CurvePoint, TrainResult
from toposcope.runs.directory import REMOVE
from toposcope.runs.driver import Engine, run_jobs
from toposcope.runs.grid import changes, grid, read_seeds, split_encodings, split_names
from toposcope.runs.grid import jobs as jobs_of
from toposcope.runs.index import RunRow

log = logging.getLogger("toposcope.runs")


@dataclass(frozen=True)
class SweepCell:
    """One encoding on one task. `half` is half of Student's 95% interval for the mean, None for one seed."""

    task: str
    encoding: str
    n: int
    mean: float
    half: float | None
    least: float
    most: float
    floor: float | None
    ceiling: float | None
    seconds: float | None


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep, in short; `words` are the last words of one that failed."""

    key: str
    status: str
    words: str | None
    config: Mapping[str, Any]
    accuracy: float | None
    loss: float | None
    floor: float | None
    ceiling: float | None
    parameters: int | None
    seconds: float | None
    curve: tuple[CurvePoint, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepResult(Result):
    """Tasks, encodings and seeds: a table of accuracies, and its runs. Failed runs are among the `skipped`."""

    kind = "sweep"
    table = "cells"

    cells: tuple[SweepCell, ...]
    runs: tuple[SweptRun, ...]


def sweep(
    tasks: str | Sequence[str],
    encodings: str | Sequence[str],
    *,
    seeds: str | int | Sequence[int] = 3,
    profile: str = "laptop-s",
    variant: str = "described",
    quirks: Sequence[str] = (),
    settings: Mapping[str, Any] | Sequence[str] = (),
    engine: Engine = "local",
    ray_address: str | None = None,
    jobs: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    gpus_per_run: float | None = None,
    retries: int = 2,
    store: str | Path = "runs",
    progress: Progress | None = None,
) -> SweepResult:
    """Train every task with every encoding and seed. Stop it at any time; the same call does what is left.

    `seeds` says how many (5: 0 to 4) or which ("0-4,7"). `jobs` runs go on at a time (default: one per core), on
    this machine or with `engine` "ray" on the cluster at `ray_address`; a run that dies is tried again `retries`
    times. `profile`, `variant`, `quirks`, `settings`, `threads` and `device` are those of `toposcope.train`; "cuda"
    is every GPU of this machine in turn, and on Ray `gpus_per_run` (default: 1; .25: four share one) of a node's.
    """
    started = time.perf_counter()
    configs = grid(
        split_names(tasks), split_encodings(encodings), read_seeds(seeds), profile=profile, variant=variant,
        changes=changes(settings, quirks),
    )  # fmt: skip
    asked = {
        "tasks": list(dict.fromkeys(config.task for config in configs)),
        "encodings": list(dict.fromkeys(config.encoding for config in configs)),
        "seeds": list(dict.fromkeys(config.seed for config in configs)),
        "profile": profile, "variant": variant, "quirks": list(quirks),
        "settings": settings if isinstance(settings, Mapping) else list(settings),
        "engine": engine, "jobs": jobs, "threads": threads, "device": device, "gpus_per_run": gpus_per_run,
        "retries": retries, "store": str(store),
    }  # fmt: skip
    log.info("encodings: %s", "; ".join(dict.fromkeys(config.encoding for config in configs)))
    wanted = jobs_of(configs)
    outcome = run_jobs(
        wanted, store, steps={config.key(): int(config.settings["steps"]) for config in configs}, engine=engine,
        ray_address=ray_address, at_once=jobs, threads=threads, retries=retries, device=device,
        gpus_per_run=gpus_per_run,
        about=f"a run of {profile}: {configs[0].profile_settings.about}", progress=progress,
    )  # fmt: skip
    place = Path(store)
    found = {key: TrainResult.from_dict(data, str(place / key)) for key, data in outcome.results.items()}
    with stored_values(store, REMOVE):
        cells = tuple(table([found[job.key] for job in wanted if job.key in found]))
    return SweepResult(
        cells=cells,
        runs=tuple(_short(row, found.get(row.key)) for row in outcome.rows),
        skipped=outcome.failed,
        provenance=Provenance(options=asked, seconds=time.perf_counter() - started),
    )


def _short(row: RunRow, result: TrainResult | None) -> SweptRun:
    names = ("accuracy", "loss", "floor", "ceiling", "parameters", "seconds")
    found = {name: None if result is None else getattr(result, name) for name in names}
    curve = () if result is None else result.curve
    return SweptRun(key=row.key, status=row.status, words=row.words, config=row.config, curve=curve, **found)


def table(runs: Iterable[TrainResult]) -> list[SweepCell]:
    """Cells of finished runs, in the order the tasks and encodings first appear."""
    groups: dict[tuple[str, str], list[TrainResult]] = {}
    for run in runs:
        groups.setdefault((run.config["task"], run.config["encoding"]), []).append(run)
    cells = []
    for (task, encoding), found in groups.items():
        accuracies = [float(run.accuracy) for run in found if run.accuracy is not None]
        mean, half = interval(accuracies)
        means = {name: _mean([getattr(run, name) for run in found]) for name in ("floor", "ceiling", "seconds")}
        cells.append(SweepCell(task, encoding, len(found), mean, half, min(accuracies), max(accuracies), **means))
    return cells


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
