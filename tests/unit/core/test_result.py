"""What every result can do, shown on a small one."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from toposcope.core.errors import BadFile, BadValue
from toposcope.core.result import Provenance, Result, Skipped, Subject, csv_text, json_text


@dataclass(frozen=True)
class Part:
    """A part of a row."""

    low: float
    high: float


@dataclass(frozen=True)
class Bin:
    """A row inside a row."""

    first: int
    share: float


@dataclass(frozen=True)
class Row:
    """One row."""

    layer: int
    name: str
    part: Part | None
    bins: tuple[Bin, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Toy(Result):
    """A result of two tables."""

    kind = "toy"
    table = "rows_"

    rows_: tuple[Row, ...]
    others: tuple[Part, ...] | None = None


TOY = Toy(
    rows_=(Row(0, "=1+1", Part(0.5, 1.5), (Bin(0, 0.25), Bin(4, 0.75))), Row(1, "é", None)),
    provenance=Provenance((Subject("m", "/m", "safetensors", "llama", "00"),), {"layers": "0-1"}, 1.5),
    skipped=(Skipped("layer 2", "cross-attention"),),
)


def test_json_is_the_fields_and_comes_back_equal(tmp_path: Path) -> None:
    path = TOY.save(tmp_path / "toy.json")
    data = json.loads(path.read_text())
    assert data["schema"] == "toposcope/toy/2"
    assert set(data) == {"schema", "provenance", "skipped", "rows_", "others"}
    assert Toy.from_dict(data) == TOY
    assert Toy.from_dict({**data, "others": []}) != TOY
    with pytest.raises(BadFile, match="toy/1"):
        Toy.from_dict({**data, "schema": "toposcope/toy/1"})


def test_a_repr_is_short_and_says_what_it_is_of() -> None:
    assert repr(TOY).startswith("<Toy of m, 2 rows_")
    assert len(repr(replace(TOY, rows_=TOY.rows_ * 1000, provenance=Provenance()))) < 80


def test_csv_and_frame_have_the_names_of_json() -> None:
    rows = list(csv.DictReader(io.StringIO(TOY.csv())))
    assert list(rows[0]) == ["layer", "name", "part.low", "part.high"]
    assert rows[0]["name"] == "'=1+1"  # no spreadsheet takes it for a formula
    pandas = pytest.importorskip("pandas", reason="frames need pandas or polars")
    frame = TOY.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["part.high"].tolist()[0] == 1.5
    polars = pytest.importorskip("polars", reason="frames need pandas or polars")
    assert isinstance(TOY.frame(library="polars"), polars.DataFrame)


def test_tables_inside_rows_are_tables() -> None:
    assert set(TOY.tables()) == {"rows_", "others", "rows_.bins"}
    assert TOY.rows("rows_.bins") == [
        {"layer": 0, "name": "=1+1", "first": 0, "share": 0.25},
        {"layer": 0, "name": "=1+1", "first": 4, "share": 0.75},
    ]
    assert TOY.rows("others") == []
    assert TOY.csv(table="others") == "low,high\n"
    with pytest.raises(BadValue, match="rows_"):
        TOY.rows("row_")


def test_results_are_equal_by_their_fields() -> None:
    assert replace(TOY, others=()) != TOY
    assert replace(TOY) == TOY
    assert object() != TOY


def test_numbers_stand_on_one_line_and_unseen_characters_as_escapes() -> None:
    text = json_text({"x": [1, 2.5, None], "name": "a\u202eb"}, indent=2)
    assert text.splitlines()[1] == '  "x": [1, 2.5, null],'
    assert "\\u202e" in text
    assert json.loads(text) == {"x": [1, 2.5, None], "name": "a\u202eb"}


@pytest.mark.parametrize(
    ("cell", "written"), [("-1.5", "-1.5"), ("@x", "'@x"), (-2, "-2"), (None, '""'), ("a,b", '"a,b"')]
)
def test_cells(cell: object, written: str) -> None:
    assert csv_text([{"x": cell}], ["x"]).splitlines()[1] == written
