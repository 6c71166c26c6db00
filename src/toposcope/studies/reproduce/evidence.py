"""Finished runs as evidence: means over seeds and paired differences, each with the runs behind it.

Two encodings are compared seed by seed: the same seed gives both the same sentences, so the difference is paired. All
intervals are Student's, 95 %, over seeds. They speak of other seeds of the same settings and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
ENOUGH = 0.9  # the accuracy at which a task counts as learned, for the steps it took
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """A number of one run; None where it is undefined. `scale` turns it into `unit`s for a reader."""

    name: str
    unit: str
    of: Callable[[Result], float | None]
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

    def __init__(self, results: Iterable[Result]) -> None:
        self._found: dict[tuple[str, str, str], dict[int, Result]] = {}
        for result in results:
            config = result["config"]
            place = (str(config["variant"]), str(config["task"]), str(config["encoding"]))
            self._found.setdefault(place, {})[int(config["seed"])] = result

    def of(self, variant: str, task: str, encoding: str) -> Mapping[int, Result]:
        """The runs of one cell, by seed."""
        return self._found.get((variant, task, encoding), {})

    def cells(self) -> list[tuple[str, str, str]]:
        """All (variant, task, encoding) with a run."""
        return list(self._found)

    def mean(self, variant: str, task: str, encoding: str, measure: Measure) -> Estimate | None:
        """The measure's mean over seeds; None where no run defines it."""
        found = [(measure.of(run), str(run["key"])) for run in self.of(variant, task, encoding).values()]
        known = [(value, (key,)) for value, key in found if value is not None]
        return _estimate(f"{encoding} on {task}, {measure.name}", measure, known)

    def difference(self, variant: str, task: str, first: str, second: str, measure: Measure) -> Estimate | None:
        """The mean of first - second over the seeds that define both."""
        one, other = self.of(variant, task, first), self.of(variant, task, second)
        known = []
        for seed in sorted(one.keys() & other.keys()):
            a, b = measure.of(one[seed]), measure.of(other[seed])
            if a is not None and b is not None:
                known.append((a - b, (str(one[seed]["key"]), str(other[seed]["key"]))))
        return _estimate(f"{first} less {second} on {task}, {measure.name}", measure, known)


def student(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half of Student's interval for it; None for one value."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return mean, None
    from scipy.stats import t

    return mean, float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))


def _estimate(what: str, measure: Measure, known: Sequence[tuple[float, tuple[str, ...]]]) -> Estimate | None:
    if not known:
        return None
    mean, half = student([value * measure.scale for value, _ in known])
    runs = tuple(dict.fromkeys(key for _, keys in known for key in keys))
    return Estimate(what, measure.unit, mean, half, len(known), runs, measure.digits)


# ------------------------------------------------------------------ measures
def of_layer(run: Result, number: int, name: str) -> float | None:
    layers = (run.get("ablation") or {}).get("zero") or []
    return layers[number][name] if number < len(layers) else None


def _largest(run: Result) -> float | None:
    values = [layer["di"] for layer in (run.get("ablation") or {}).get("zero") or [] if layer["di"] is not None]
    return max(values, default=None)


def _contraction(run: Result, moment: int) -> float | None:
    if not run["spectra"]:
        return None
    values = [rho for layer in run["spectra"][moment]["rho"] for rho in layer if rho is not None]
    return float(np.median(values)) if values else None


def _sharpness(run: Result) -> float | None:
    values = [math.log10(entry["value"]) for entry in run["hessian"] if entry["value"] > 0]
    return math.fsum(values) / len(values) if values else None


def _steps(run: Result) -> float | None:
    reached = (entry["step"] for entry in run["curve"] if entry["accuracy"] >= ENOUGH)
    return float(next(reached, run["steps"]))


ACCURACY = Measure("accuracy", "%", lambda run: run["accuracy"], 100)
POINTS = Measure("accuracy", "points", lambda run: run["accuracy"], 100)
SKILL = Measure("accuracy above the floor", "points", lambda run: run["accuracy"] - run["floor"], 100)
DROP = Measure("largest drop by one head of layer 0", "points", lambda run: of_layer(run, 0, "d_max"), 100)
DEPOSIT = Measure("deposit index of layer 0", "", lambda run: of_layer(run, 0, "di"), digits=2)
ANY_DEPOSIT = Measure("largest deposit index of a layer", "", _largest, digits=2)
RHO_FIRST = Measure("contraction of the logits at the start", "", lambda run: _contraction(run, 0), digits=2)
RHO_LAST = Measure("contraction of the logits at the end", "", lambda run: _contraction(run, -1), digits=2)
SHARPNESS = Measure("log10 of the largest Hessian eigenvalue", "", _sharpness, digits=2)
STEPS = Measure("steps to 90 %", "steps", _steps, digits=0)
