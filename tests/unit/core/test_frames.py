"""Results as tables: the same rows as in the JSON, in pandas and in polars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.core import frames
from toposcope.core.errors import BadFile, BadValue, MissingExtra, NotFound


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("frames")
    model = write_llama(place / "m")
    with pytest.raises(SystemExit) as ended:
        main(["scan", str(model), "--json", str(place / "scan.json")])
    assert not ended.value.code
    return place / "scan.json"


def rows_of(table: Any) -> list[dict[str, Any]]:
    return table.to_dicts() if hasattr(table, "to_dicts") else table.to_dict("records")


@pytest.mark.parametrize("library", frames.LIBRARIES)
def test_heads_are_rows(library: frames.Library, stored: Path) -> None:
    pytest.importorskip(library)
    heads = json.loads(stored.read_text())["heads"]
    table = toposcope.frame(stored, library=library)
    assert type(table).__module__.startswith(library)
    assert table.shape[0] == len(heads) == 12
    for row, head in zip(rows_of(table), heads, strict=True):
        assert (row["layer"], row["head"], row["verdict"]) == (head["layer"], head["head"], head["verdict"])
        assert row["symU.min"] == head["symU"]["min"]
        assert list(row["eigenvalues"][0]) == head["eigenvalues"][0]
    assert "symU" not in table.columns
    assert toposcope.frame(stored, "layers", library=library).shape[0] == 3


@pytest.mark.parametrize("library", frames.LIBRARIES)
def test_a_result_of_the_library_is_the_same_table(library: frames.Library, stored: Path) -> None:
    pytest.importorskip(library)
    with toposcope.load(stored.parent / "m") as model:
        found = toposcope.scan(model)
    ours, theirs = toposcope.frame(found, library=library), toposcope.frame(stored, library=library)
    assert list(ours.columns) == list(theirs.columns)
    assert [row["margin"] for row in rows_of(ours)] == pytest.approx([row["margin"] for row in rows_of(theirs)])


@pytest.mark.parametrize("library", frames.LIBRARIES)
def test_rows_that_lack_something_have_nothing_there(library: frames.Library) -> None:
    pytest.importorskip(library)
    table = toposcope.frame({"runs": [{"a": 1}, {"a": 2.5, "b": {"c": "x"}}]}, library=library)
    assert list(table.columns) == ["a", "b.c"]
    assert list(table["a"]) == [1.0, 2.5]
    assert int(table["b.c"].isna().sum() if library == "pandas" else table["b.c"].is_null().sum()) == 1


def test_tables_are_named() -> None:
    result = {"schema": "x", "curve": [{"step": 1}], "skipped": [{"what": "y"}], "numbers": [1, 2], "heads": []}
    assert frames.tables(result) == ("curve",)
    with pytest.raises(BadValue, match=r"no table 'curv'\. Did you mean 'curve'"):
        toposcope.frame(result, "curv")
    with pytest.raises(BadValue, match="holds no table"):
        toposcope.frame({"schema": "x"})
    with pytest.raises(BadValue, match="a list is no result"):
        toposcope.frame([1])
    with pytest.raises(BadValue, match="'panda' makes no tables here"):
        toposcope.frame(result, library="panda")  # type: ignore[arg-type]


def test_files_that_are_no_results(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="--json FILE"):
        toposcope.frame(tmp_path / "none.json")
    for text in ("{", "[1]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(BadFile, match="written with --json"):
            toposcope.frame(str(tmp_path / "bad.json"))


def test_without_either_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(MissingExtra, match="need pandas or polars: pip install pandas"):
        toposcope.frame({"runs": [{"a": 1}]})
    with pytest.raises(MissingExtra, match="need polars: pip install polars"):
        toposcope.frame({"runs": [{"a": 1}]}, library="polars")
