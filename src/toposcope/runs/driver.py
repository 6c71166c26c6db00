"""Many runs through a store: what is left to do is announced, done, and told of while it is being done.

Lines for people go to the log "toposcope.runs"; how far the work has come goes to a progress callback.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toposcope.core.cluster import cores
from toposcope.core.errors import BadValue
from toposcope.core.progress import Progress, silent
from toposcope.core.ranges import computable
from toposcope.core.result import Skipped
from toposcope.models.device import device_names
from toposcope.runs import local, on_ray
from toposcope.runs.index import RunRow
from toposcope.runs.jobs import Job
from toposcope.runs.queue import Queue, RunEvent
from toposcope.runs.store import Store
from toposcope.runs.words import duration, percent, title

Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "ray")
ALL = "all runs"
_FREE = ("encoding", "seed", "cell")  # runs that differ in these alone take about as long
log = logging.getLogger("toposcope.runs")


@dataclass(frozen=True)
class Outcome:
    """What became of some jobs: their rows in the store, and the results of those that are done, by key."""

    rows: tuple[RunRow, ...]
    results: Mapping[str, dict[str, Any]]

    @property
    def failed(self) -> tuple[Skipped, ...]:
        """Runs without a result, and their last words."""
        return tuple(Skipped(row.key, row.words or "") for row in self.rows if row.key not in self.results)


def run_jobs(
    jobs: Sequence[Job],
    store: str | Path,
    *,
    steps: Mapping[str, int],
    engine: Engine = "local",
    ray_address: str | None = None,
    at_once: int | None = None,
    threads: int = 1,
    retries: int = 2,
    device: str = "cpu",
    gpus_per_run: float | None = None,
    guess: float | None = None,
    about: str = "",
    progress: Progress | None = None,
) -> Outcome:
    """Do all jobs that are not done. `steps` says how many each has; `guess` or `about` how long one takes.

    On this machine "cuda" is all its GPUs in turn; on Ray each run has `gpus_per_run` of its node's.
    """
    if engine not in ENGINES:
        raise BadValue(f"unknown engine '{engine}'. It is local or ray.")
    if ray_address and engine != "ray":
        raise BadValue(
            f"--ray-address {ray_address} is given without --engine ray. Add it, or leave the address out."
        )
    if gpus_per_run is not None and (engine != "ray" or device == "cpu" or not gpus_per_run > 0):
        raise BadValue(
            f"--gpus-per-run {gpus_per_run:g} goes with --engine ray and --device cuda: Ray deals the GPUs out."
        )
    devices = _on_ray(device) if engine == "ray" else device_names(device)
    with Store(store) as opened:
        opened.repair()
        many = at_once or cores()
        _announce(opened, jobs, guess, about, many if engine == "local" else 1)
        queue = Queue(opened, jobs, retries=retries, watch=Watch(steps, progress))
        try:
            if engine == "ray":
                gpus = 0.0 if device == "cpu" else gpus_per_run or 1.0
                on_ray.run(queue, address=ray_address, jobs=at_once, threads=threads, device=devices[0], gpus=gpus)
            else:
                local.run(queue, jobs=many, threads=threads, devices=devices)
        except KeyboardInterrupt:
            done = sum(row is not None and row.status == "done" for row in map(opened.get, steps))
            log.warning("stopped: %d of %d runs are done; the same command does the others", done, len(jobs))
            raise
        found = {job.key: opened.result(job) for job in jobs}
        rows = tuple(row for job in jobs if (row := opened.get(job.key)) is not None)
    return Outcome(rows, {key: result for key, result in found.items() if result is not None})


def _on_ray(device: str) -> list[str]:
    """What each node is asked for: it has no device of this machine."""
    if device not in ("cpu", "cuda"):
        raise BadValue(f"on Ray a run is on the cpu, or on the GPU that Ray gives it (cuda); got '{device}'.")
    return [device]


def _announce(store: Store, jobs: Sequence[Job], guess: float | None, about: str, at_once: int) -> None:
    """How many runs, how many are done, how long the others will take."""
    rows = store.rows()
    done = {row.key for row in rows if row.status == "done"}
    left = [job for job in jobs if job.key not in done]
    log.info("%d runs (%s), %d already done", len(jobs), _counts(jobs), len(jobs) - len(left))
    if not left:
        return
    seconds = _estimate(rows, left, guess)
    if seconds is not None:
        log.info("the others take about %s, %d at a time", duration(seconds / min(at_once, len(left))), at_once)
    elif about:
        log.info("%s", about)


def _counts(jobs: Sequence[Job]) -> str:
    """2 tasks, 3 encodings, 1 seed"""
    counts = {name: len({str(job.config.get(name)) for job in jobs}) for name in ("task", "encoding", "seed")}
    return ", ".join(f"{number} {name}{'s' * (number > 1)}" for name, number in counts.items())


def _estimate(rows: Sequence[RunRow], left: Sequence[Job], guess: float | None) -> float | None:
    """Seconds of one core, from finished runs of the same settings, else the guess; None where neither is known."""
    spent: dict[str, list[float]] = {}
    for row in rows:
        seconds = (row.summary or {}).get("seconds")
        if row.status == "done" and isinstance(seconds, int | float) and computable(seconds):
            spent.setdefault(_like(row.config), []).append(float(seconds))
    total = 0.0
    for job in left:
        known = spent.get(_like(job.config))
        if known is None and guess is None:
            return None
        total += sum(known) / len(known) if known else guess or 0.0
    return total


def _like(config: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in config.items() if name not in _FREE}, sort_keys=True)


class Watch:
    """Called with every event of a queue: a line for every run that ends, and how far all of them have come."""

    def __init__(self, steps: Mapping[str, int], progress: Progress | None) -> None:
        self._steps, self._tell = steps, progress or silent
        self._reached, self._ended = dict.fromkeys(steps, 0), 0
        self._tell(ALL, 0, sum(steps.values()))

    def __call__(self, event: RunEvent) -> None:
        job, data = event.job, event.data
        name, steps = title(job.config), self._steps[job.key]
        words = str(data.get("words", "")).strip().splitlines() or [""]
        if event.what == "started" and words[0]:
            log.warning("again      %s: %s", name, words[0])
        elif event.what == "progress":
            self._reach(job.key, int(data["step"]))
            self._tell(
                f"{name}: {percent(data['accuracy'])}" if "accuracy" in data else name, int(data["step"]), steps
            )
        elif event.what == "elsewhere":
            log.info("waits for  %s: process %s has it", name, data["owner"])
        elif event.what == "retried":
            log.warning("again      %s: %s", name, words[0])
        elif event.what in ("done", "found", "failed"):
            self._ended += 1
            self._tell(name, steps, steps)
            self._reach(job.key, steps)
            count = f"{self._ended:{len(str(len(self._steps)))}d}/{len(self._steps)}"
            if event.what == "failed":
                log.warning("%s %s: failed: %s", count, name, words[-1])
            elif event.what == "done":
                took = duration(data.get("seconds"))
                said = f": {percent(data['accuracy'])} in {took}" if "accuracy" in data else ""
                log.info("%s %s%s", count, name, said)

    def _reach(self, key: str, step: int) -> None:
        """A run that begins again at a checkpoint moves the bar of all runs back."""
        self._reached[key] = step
        self._tell(ALL, sum(self._reached.values()), sum(self._steps.values()))
