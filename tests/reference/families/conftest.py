"""Prints, at the end of the run, the table of families whose attention was compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import harness

ROWS: dict[str, dict[str, float]] = defaultdict(dict)


@pytest.fixture(autouse=True)
def _hand_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests may run in several processes: what one compared travels with its report to the one that prints."""
    before = len(harness.COVERED)
    yield
    request.node.user_properties.extend(("compared", row) for row in harness.COVERED[before:])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "teardown":
        return
    for name, value in report.user_properties:
        if name == "compared":
            family, setting, worst = value
            ROWS[family][setting] = max(worst, ROWS[family].get(setting, 0.0))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not ROWS:
        return
    terminalreporter.section("families whose attention equals the model's own")
    for family in sorted(ROWS):
        settings = ROWS[family]
        terminalreporter.write_line(f"{family:20s} worst {max(settings.values()):.1e}  {', '.join(settings)}")
    terminalreporter.write_line(f"{len(ROWS)} families, {sum(map(len, ROWS.values()))} settings")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "model"
