"""Of the tests that kill processes and nodes, some are drawn: they wait for most of their time."""

from __future__ import annotations

import pytest

KILLS, CLUSTERS = 4, 2


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.name == "test_kills.py":
        item.add_marker(pytest.mark.sample(KILLS, of="kills"))
    if item.path.name == "test_ray.py":
        item.add_marker(pytest.mark.sample(CLUSTERS, of="clusters that lose a node"))
