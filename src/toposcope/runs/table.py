"""The table a sweep ends with: for every task and encoding the mean accuracy over seeds, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Cell:
    """One encoding on one task. `half` is half of Student's 95 % interval for the mean, None for one seed."""

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


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and t_{0.975, n-1} s / sqrt(n); None where one value says nothing of the spread."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, None
    from scipy.stats import t

    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * spread / math.sqrt(n)


def table(results: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Cell]:
    """Cells from pairs (config, result), in the order the tasks and encodings first appear."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for config, result in results:
        groups.setdefault((config["task"], config["encoding"]), []).append(result)
    cells = []
    for (task, encoding), found in groups.items():
        accuracies = [float(result["accuracy"]) for result in found]
        mean, half = interval(accuracies)
        cells.append(
            Cell(
                task,
                encoding,
                len(found),
                mean,
                half,
                min(accuracies),
                max(accuracies),
                _mean(result.get("floor") for result in found),
                _mean(result.get("ceiling") for result in found),
                _mean(result.get("seconds") for result in found),
            )
        )
    return cells


def _mean(values: Iterable[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
