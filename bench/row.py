"""One line of the benchmark table, and how its numbers are taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_spreads: list[float] = []


@dataclass(frozen=True)
class Row:
    """What was measured, beside its peer and its goal. `met` is None where there is no goal.

    `why` says what keeps it from a goal that is not met, with the bound.
    """

    work: str
    ours: str
    peer: str
    ratio: str
    goal: str
    met: bool | None
    why: str = ""


def cpu(work: Callable[[], object], repeat: int = 1) -> float:
    """Processor seconds of one call."""
    before = time.process_time()
    for _ in range(repeat):
        work()
    return (time.process_time() - before) / repeat


def interleaved(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each measure, taken in turns so that a busy moment of the machine hits all alike."""
    taken: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for values, measure in zip(taken, measures, strict=True):
            values.append(measure())
    for values in taken:
        if rounds > 2:
            low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
            _spreads.append((high - low) / 2 / middle if middle else 0.0)
    return [statistics.median(values) for values in taken]


def spread_since() -> float | None:
    """The largest half of a quartile range, in units of its median, among all that `interleaved` took since asked."""
    largest = max(_spreads, default=None)
    _spreads.clear()
    return largest


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, and below them why a goal is not met."""
    lines = ["| work | ours | peer | ratio | goal | met |", "|---|---|---|---|---|---|"]
    for row in rows:
        met = "-" if row.met is None else "yes" if row.met else "no"
        lines.append(f"| {row.work} | {row.ours} | {row.peer} | {row.ratio} | {row.goal} | {met} |")
    lines += [f"\nNot met, {row.work}: {row.why}" for row in rows if row.met is False and row.why]
    return "\n".join(lines)
