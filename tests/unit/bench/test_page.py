"""The table and the page of the benchmarks."""

from __future__ import annotations

import re

import pytest
from bench import row
from bench.page import page
from bench.row import Row, interleaved, spread_since, table

MET = Row("fast", "1 ms", "dense 9 ms", "9x", ">= 8x", True, "not said")
MISSED = Row("slow", "2 ms", "dense 4 ms", "2x", ">= 3x", False, "the bound is 2.5x.")
FREE = Row("other", "1 s", "-", "-", "-", None, "not said")


def test_a_goal_that_is_not_met_has_its_reason_below_the_table() -> None:
    lines = table([MET, MISSED, FREE]).splitlines()
    assert [line.split(" | ")[-1] for line in lines[2:5]] == ["yes |", "no |", "- |"]
    assert lines[-1] == "Not met, slow: the bound is 2.5x."
    assert "not said" not in "".join(lines)


def test_the_page_counts_goals_and_tells_the_spread() -> None:
    groups = [
        {"name": "head_spectra", "rows": [MET, MISSED], "spread": 0.031},
        {"name": "b", "rows": [FREE], "spread": None},
    ]
    said = page({"groups": groups, "toposcope": "9.9", "machine": "m"})
    assert "## Head spectra" in said
    assert "3%" in said
    assert re.findall(r"(\d+) of (\d+) goals", said) == [("1", "2")]
    assert "9.9" in said


def test_measures_take_turns_and_their_spread_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row, "_spreads", [])
    order: list[str] = []
    values = {"a": iter([1.0, 3.0, 2.0]), "b": iter([5.0, 5.0, 5.0])}

    def measure(name: str) -> float:
        order.append(name)
        return next(values[name])

    assert interleaved(3, lambda: measure("a"), lambda: measure("b")) == [2.0, 5.0]
    assert order == ["a", "b"] * 3
    assert spread_since() == pytest.approx(0.25)  # quartiles 1.5 and 2.5 around 2
    assert spread_since() is None
