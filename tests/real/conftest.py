"""Tests of trained models run in one process, which then holds SmolLM2 once; of the longest ones some are drawn."""

from __future__ import annotations

import pytest

# Five to twenty processor seconds each.
LONG = ("test_ablate.py", "test_patterns.py", "test_refine.py", "test_streaming.py", "test_trace.py")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.slow)
    item.add_marker(pytest.mark.xdist_group("real"))
    if item.path.name in LONG:
        item.add_marker(pytest.mark.sample(4, of="the longest tests of trained models"))
