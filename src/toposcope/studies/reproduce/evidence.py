"""Finished runs as evidence: means over seeds and paired differences, each with the runs behind it.

Two encodings are compared seed by seed: the same seed gives both the same sentences, so the difference is paired. All
intervals are Student's, 95 %, over seeds. They speak of other seeds of the same settings and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from toposcope.core.statistics import interval
from toposcope.lab.result import ENOUGH, TrainResult

Run = TypeVar("Run")


@dataclass(frozen=True)
class RunMeasure(Generic[Run]):
    """A number of one run; None where it is undefined. `scale` turns it into `unit`s for a reader."""

    name: str
    unit: str
    of: Callable[[Run], float | None]
    scale: float = 1.0
    digits: int = 1


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. `half` is half of its interval, None for one seed; `runs` are the keys it was made from."""

    what: str
    unit: str
    mean: float
    half: float | None
    n: int
    runs: tuple[str, ...]
    digits: int = 1

    @property
    def low(self) -> float:
        return -math.inf if self.half is None else self.mean - self.half

    @property
    def high(self) -> float:
        return math.inf if self.half is None else self.mean + self.half

    def __str__(self) -> str:
        spread = "" if self.half is None else f" ± {self.half:.{self.digits}f}"
        return f"{self.what} {self.mean:.{self.digits}f}{spread}{f' {self.unit}' if self.unit else ''} ({self.n})"


class Evidence:
    """Finished runs by variant, task, encoding and seed."""

    def __init__(self, results: Iterable[TrainResult]) -> None:
        self._found: dict[tuple[str, str, str], dict[int, TrainResult]] = {}
        for result in results:
            config = result.config
            place = (str(config["variant"]), str(config["task"]), str(config["encoding"]))
            self._found.setdefault(place, {})[int(config["seed"])] = result

    def of(self, variant: str, task: str, encoding: str) -> Mapping[int, TrainResult]:
        """The runs of one cell, by seed."""
        return self._found.get((variant, task, encoding), {})

    def cells(self) -> list[tuple[str, str, str]]:
        """All (variant, task, encoding) with a run."""
        return list(self._found)

    def mean(self, variant: str, task: str, encoding: str, measure: RunMeasure[TrainResult]) -> Estimate | None:
        """The measure's mean over seeds; None where no run defines it."""
        found = [(measure.of(run), (run.key,)) for run in self.of(variant, task, encoding).values()]
        return estimate(f"{encoding} on {task}, {measure.name}", measure, found)

    def difference(
        self, variant: str, task: str, first: str, second: str, measure: RunMeasure[TrainResult]
    ) -> Estimate | None:
        """The mean of first - second over the seeds that define both."""
        one, other = self.of(variant, task, first), self.of(variant, task, second)
        found: list[tuple[float | None, tuple[str, ...]]] = []
        for seed in sorted(one.keys() & other.keys()):
            a, b = measure.of(one[seed]), measure.of(other[seed])
            found.append((None if a is None or b is None else a - b, (one[seed].key, other[seed].key)))
        return estimate(f"{first} less {second} on {task}, {measure.name}", measure, found)


def estimate(
    what: str, measure: RunMeasure[Any], found: Sequence[tuple[float | None, tuple[str, ...]]]
) -> Estimate | None:
    """The mean of a measure over the runs that define it; None where none does."""
    known = [(value, keys) for value, keys in found if value is not None]
    if not known:
        return None
    mean, half = interval([value * measure.scale for value, _ in known])
    runs = tuple(dict.fromkeys(key for _, keys in known for key in keys))
    return Estimate(what, measure.unit, mean, half, len(known), runs, measure.digits)


# ------------------------------------------------------------------ measures
def of_layer(run: TrainResult, number: int, name: str) -> float | None:
    """A number of one layer's ablation by zero."""
    layers = run.ablation.zero if run.ablation else ()
    return getattr(layers[number], name) if number < len(layers) else None


def _largest(run: TrainResult) -> float | None:
    values = [layer.di for layer in (run.ablation.zero if run.ablation else ()) if layer.di is not None]
    return max(values, default=None)


def _norm_ratio(run: TrainResult, moment: int) -> float | None:
    if not run.spectra:
        return None
    values = [rho for layer in run.spectra[moment].rho for rho in layer if rho is not None]
    return float(np.median(values)) if values else None


def _sharpness(run: TrainResult) -> float | None:
    values = [math.log10(entry.value) for entry in run.hessian if entry.value is not None and entry.value > 0]
    return math.fsum(values) / len(values) if values else None


def _steps(run: TrainResult) -> float | None:
    reached = (entry.step for entry in run.curve if entry.accuracy >= ENOUGH)
    return float(next(reached, run.steps))


def _above_floor(run: TrainResult) -> float | None:
    return None if run.accuracy is None else run.accuracy - run.floor


ACCURACY = RunMeasure[TrainResult]("accuracy", "%", lambda run: run.accuracy, 100)
POINTS = RunMeasure[TrainResult]("accuracy", "points", lambda run: run.accuracy, 100)
SKILL = RunMeasure("accuracy above the floor", "points", _above_floor, 100)
DROP = RunMeasure[TrainResult](
    "largest drop by one head of layer 0", "points", lambda run: of_layer(run, 0, "d_max"), 100
)
DEPOSIT = RunMeasure[TrainResult]("deposit index of layer 0", "", lambda run: of_layer(run, 0, "di"), digits=2)
ANY_DEPOSIT = RunMeasure("largest deposit index of a layer", "", _largest, digits=2)
RHO_FIRST = RunMeasure[TrainResult]("logit norm ratio at the start", "", lambda run: _norm_ratio(run, 0), digits=2)
RHO_LAST = RunMeasure[TrainResult]("logit norm ratio at the end", "", lambda run: _norm_ratio(run, -1), digits=2)
SHARPNESS = RunMeasure("log10 of the largest Hessian eigenvalue", "", _sharpness, digits=2)
STEPS = RunMeasure("steps to 90 %", "steps", _steps, digits=0)
