"""The table of a sweep against SciPy's own interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from toposcope.runs.table import interval, table


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


def test_cells_come_in_order_with_their_bounds() -> None:
    def of(task: str, encoding: str, accuracy: float) -> tuple[dict[str, str], dict[str, float]]:
        return {"task": task, "encoding": encoding}, {
            "accuracy": accuracy,
            "floor": 0.2,
            "ceiling": 1.0,
            "seconds": 3.0,
        }

    cells = table([of("b", "rope", 0.5), of("a", "rope", 0.1), of("b", "none", 0.3), of("b", "rope", 0.7)])
    assert [(cell.task, cell.encoding, cell.n) for cell in cells] == [
        ("b", "rope", 2),
        ("a", "rope", 1),
        ("b", "none", 1),
    ]
    first = cells[0]
    assert (first.mean, first.least, first.most) == (0.6, 0.5, 0.7)
    assert (first.floor, first.ceiling, first.seconds) == (0.2, 1.0, 3.0)
