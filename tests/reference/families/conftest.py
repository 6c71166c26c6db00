"""Prints, at the end of the run, the table of families whose attention was compared."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from . import harness


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    for family, setting, worst in harness.COVERED:
        rows[family][setting] = max(worst, rows[family].get(setting, 0.0))
    if not rows:
        return
    terminalreporter.section("families whose attention equals the model's own")
    for family in sorted(rows):
        settings = rows[family]
        terminalreporter.write_line(f"{family:20s} worst {max(settings.values()):.1e}  {', '.join(settings)}")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "model"
