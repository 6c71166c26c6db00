"""The list of benchmarks: every group can be imported and asked."""

from __future__ import annotations

from bench.__main__ import ROWS


def test_every_group_has_its_measure() -> None:
    assert all(callable(getattr(group, "measure", group)) for group in ROWS.values())
