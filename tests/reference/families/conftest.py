"""What all family tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import harness


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.sample(2))  # settings of each family; make test-all compares all of them


@pytest.fixture(autouse=True)
def _hand_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """Attach what a test compared to its report, from which tests/conftest.py makes the table."""
    before = len(harness.COVERED)
    yield
    request.node.user_properties.extend(("compared", row) for row in harness.COVERED[before:])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "model"
