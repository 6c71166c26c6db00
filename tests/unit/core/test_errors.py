"""What is suggested in place of a name that is not known."""

from __future__ import annotations

from toposcope.core.errors import FEW, MOST, did_you_mean


def test_the_nearest_names_come_first_and_few_are_all_told() -> None:
    few = ["bugs", "models", "tasks"]
    assert "'models'" in did_you_mean("modls", few)
    assert all(name in did_you_mean("modls", few) for name in few)
    many = [f"name{number}" for number in range(FEW)] + ["models"]
    assert "name0" not in did_you_mean("modls", many)
    assert all(name in did_you_mean("xyz", many) for name in many)


def test_a_long_list_is_not_told_in_full() -> None:
    known = [f"name{number:03d}" for number in range(MOST + 1)]
    assert did_you_mean("xyz", known).count("name") == FEW
