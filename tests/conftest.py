"""Prints, at the end of the run, the table of families whose attention was compared with the model's own."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("TOPOSCOPE_TRACEBACK", "1")  # a bug must look like one in tests

# The same examples in every run, so that a failure is the change's and not the draw's; to look further, run
# pytest --hypothesis-profile explore.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", max_examples=1000)
settings.load_profile("repeatable")

ROWS: dict[str, dict[str, float]] = defaultdict(dict)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tests may run in several processes; what each compared travels with its report to the one that prints."""
    if report.when == "teardown":
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
