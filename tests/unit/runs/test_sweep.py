"""The table of a sweep against SciPy's own interval, and its result as a page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.unit.runs.making import shows_itself, trained
from toposcope.core.statistics import interval
from toposcope.lab.result import TrainResult
from toposcope.runs.sweep import SweepResult, SweptRun, table


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_the_interval_is_students(n: int) -> None:
    values = np.random.default_rng(n).uniform(size=n)
    mean, half = interval(values.tolist())
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert half is not None
    np.testing.assert_allclose([mean - half, mean + half], [low, high], rtol=1e-12)


def test_one_seed_says_nothing_of_the_spread() -> None:
    assert interval([0.25]) == (0.25, None)
    assert interval([0.5, 0.5]) == (0.5, 0.0)


def run(task: str, encoding: str, accuracy: float, seed: int = 0) -> TrainResult:
    config = {"task": task, "encoding": encoding, "seed": seed}
    return TrainResult.from_dict(trained(accuracy=accuracy, floor=0.2, seconds=3.0, config=config))


def test_cells_come_in_order_with_their_bounds() -> None:
    cells = table([run("b", "rope", 0.5), run("a", "rope", 0.1), run("b", "none", 0.3), run("b", "rope", 0.7)])
    assert [(cell.task, cell.encoding, cell.n) for cell in cells] == [
        ("b", "rope", 2),
        ("a", "rope", 1),
        ("b", "none", 1),
    ]
    first = cells[0]
    assert (first.mean, first.least, first.most) == (0.6, 0.5, 0.7)
    assert (first.floor, first.ceiling, first.seconds) == (0.2, 1.0, 3.0)


def swept() -> SweepResult:
    """Four tasks, so that the table is folded, and a run that failed."""
    runs = [
        run(task, encoding, accuracy + seed / 100, seed)
        for task in ("distance", "count", "copy", "reverse")
        for encoding, accuracy in (("rope:base=500000,scaling=yarn,factor=8", 0.9), ("none", 0.3))
        for seed in (0, 1)
    ]
    short = [
        SweptRun(
            key=each.key, status="done", words=None, config=each.config, accuracy=each.accuracy, loss=each.loss,
            floor=each.floor, ceiling=each.ceiling, parameters=each.parameters, seconds=each.seconds,
            curve=each.curve,
        )
        for each in runs
    ]  # fmt: skip
    missing = dict.fromkeys(("accuracy", "loss", "floor", "ceiling", "parameters", "seconds"))
    words = "Traceback\nthe loss became [red]nan[/red]"
    failed = SweptRun(key="f" * 16, status="failed", words=words, config=runs[0].config, curve=(), **missing)
    return SweepResult(cells=tuple(table(runs)), runs=(*short, failed))


def test_a_sweep_is_a_result(tmp_path: Path) -> None:
    result = swept()
    text = shows_itself(result, tmp_path)
    assert re.search(r" 90\.5 ± 6\.4 ", text)
    assert "[red]nan" in text
    assert list(result.frame()["task"]) == [task for task in ("distance", "count", "copy", "reverse") for _ in "12"]
    assert result.rows("runs.curve")[0]["step"] == 0
