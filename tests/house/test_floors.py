"""A module imports only from its own floor or from those below it; imports inside functions count too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.graph import House, room

# From the ground up; rooms of one floor may use one another. `toposcope/__init__.py` is the roof.
FLOORS = (
    ("_version", "core"),
    ("encodings",),
    ("checkpoints",),
    ("spectra", "dynamics"),
    ("checks", "scanning"),
    ("models", "refinements"),
    ("live",),
    ("lab",),
    ("runs",),
    ("studies",),
    ("report",),
    ("web", "cli", "testing", "__main__"),
    ("",),
)
LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


def upward(house: House) -> list[str]:
    """Every import of a higher floor, as a line that says where."""
    return [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each in house.imports
        if LEVEL[room(each.imported)] > LEVEL[room(each.importer)]
    ]


def test_every_room_has_a_floor() -> None:
    assert {room(module) for module in House().modules} == set(LEVEL)


def test_nothing_imports_upward() -> None:
    assert upward(House()) == []


def test_studies_serve_the_command_line_alone() -> None:
    users = {room(each.importer) for each in House().imports if room(each.imported) == "studies"}
    assert users <= {"studies", "cli", "report", ""}


@pytest.mark.parametrize("where", ["at the top", "in a function"])
def test_an_upward_import_is_found(where: str, tmp_path: Path) -> None:
    for name in ("__init__", "core/__init__", "core/low", "report/__init__"):
        path = tmp_path / "toposcope" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    line = "from toposcope import report\n"
    low = line if where == "at the top" else f"def f():\n    {line}"
    (tmp_path / "toposcope/core/low.py").write_text(low)
    assert upward(House(tmp_path)) == [
        f"toposcope.core.low:{1 if where == 'at the top' else 2} imports toposcope.report"
    ]


def test_imports_for_types_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "toposcope/core").mkdir(parents=True)
    (tmp_path / "toposcope/__init__.py").write_text("")
    (tmp_path / "toposcope/core/__init__.py").write_text("if TYPE_CHECKING:\n    import toposcope\n")
    assert House(tmp_path).imports == ()
