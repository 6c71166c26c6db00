"""Tests of trained models run in one process, which then holds SmolLM2 once; of the longest ones some are drawn."""

from __future__ import annotations

import pytest

# Files with tests of five to twenty processor seconds.
LONG = (
    "test_ablate.py",
    "test_patterns.py",
    "test_refine.py",
    "test_scan.py",
    "test_smollm2.py",
    "test_streaming.py",
    "test_trace.py",
)


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.slow)
    item.add_marker(pytest.mark.xdist_group("real"))
    if item.path.name in LONG:
        item.add_marker(pytest.mark.sample(6, of="the longest tests of trained models"))
