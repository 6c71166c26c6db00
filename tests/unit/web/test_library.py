"""Runs and result files, reached by key only."""

from __future__ import annotations

from pathlib import Path

import pytest

import toposcope
from tests.unit.tiny import write_llama
from tests.unit.web.making import write_file, write_store
from toposcope.core.errors import BadFile, NotFound
from toposcope.web.library import Library, result_file


@pytest.mark.parametrize(
    "key", ["..", ".", "", "../aaaa1111", "aaaa1111/", "aaaa1111\x00", "aaaa", "a" * 5000, "aaaa1111\n"]
)
def test_only_whole_keys_open_a_run(tmp_path: Path, key: str) -> None:
    library = Library(write_store(tmp_path / "runs"))
    assert library.run("aaaa1111")["status"] == "done"
    with pytest.raises(NotFound):
        library.run(key)


def test_a_directory_that_the_index_does_not_know_is_not_served(tmp_path: Path) -> None:
    store = write_store(tmp_path / "runs")
    (store / "dddd4444").mkdir()
    (store / "dddd4444" / "result.json").write_text('{"schema": "toposcope/train/1"}')
    with pytest.raises(NotFound):
        Library(store).run("dddd4444")


def test_wrong_files_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Library(None, [tmp_path / "none.json"])
    for content in ("{", "[]", "{}", '{"schema": 3}', '{"schema": "other/1"}', "\udcff"):
        place = tmp_path / "wrong.json"
        place.write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(BadFile):
            Library(None, [place])


def test_files_are_listed_and_read(tmp_path: Path) -> None:
    library = Library(
        None, [write_file(tmp_path / "a.json"), write_file(tmp_path / "b.json", schema="toposcope/scan/1")]
    )
    assert [(each["id"], each["schema"]) for each in library.files()] == [
        ("r0", "toposcope/spectrum/1"),
        ("r1", "toposcope/scan/1"),
    ]
    assert library.file("r1")[0] == "b.json"
    assert library.runs() == []


def test_results_of_one_model_are_told_apart_by_their_titles(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    files = []
    for name, layers in (("a", "0"), ("b", "1")):
        files.append(toposcope.scan(model, layers=layers).save(tmp_path / f"{name}.json"))
    library = Library(None, [*files, write_file(tmp_path / "old.json")])
    titles = [each["title"] for each in library.files()]
    assert titles[:2] == ["Scan of model, layer 0", "Scan of model, layer 1"]
    assert titles[2] == "old.json"  # one that this version cannot read
    files[1].write_text(files[0].read_text())
    assert library.files()[1]["title"] == titles[0]


def test_what_counts_as_a_result(tmp_path: Path) -> None:
    assert result_file("out/scan.json") == Path("out/scan.json")
    assert result_file("model/model.safetensors.index.json") is None
    assert result_file("smollm2") is None
    model = write_llama(tmp_path / "model")
    assert result_file(str(model)) is None
    kept = toposcope.scan(model, out=tmp_path / "out", layers="0")
    assert result_file(str(tmp_path / "out")) == tmp_path / "out" / "result.json"
    assert Library(None, [tmp_path / "out" / "result.json"]).scans() == (kept,)
