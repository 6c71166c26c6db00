"""Tests of trained models run in one process, which then holds SmolLM2 once; of the longest ones some are drawn."""

from __future__ import annotations

import pytest

# About ten processor seconds each, or more.
LONG = ("test_ablate.py", "test_patterns.py")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.slow)
    item.add_marker(pytest.mark.xdist_group("real"))
    if item.path.name in LONG:
        item.add_marker(pytest.mark.sample(2, of="the longest tests of trained models"))
