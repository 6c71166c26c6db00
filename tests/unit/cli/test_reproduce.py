"""`toposcope reproduce`: a small grid through the store, resumed, and the pages it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toposcope.cli import main
from toposcope.core.errors import BadValue
from toposcope.lab.config import RunConfig
from toposcope.studies.reproduce import coupling


def tiny(size: coupling.CouplingSize, seeds: range) -> list[RunConfig]:
    sizes = {"steps": 2, "batch": 4, "width": 8, "heads": 2, "ff": 8}
    return [
        RunConfig("distance", encoding, seed, variant=variant, **sizes)
        for seed in seeds
        for encoding, variant in (("rope", "described"), ("none", "described"), ("rope", "published"))
    ]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *arguments])
    return int(ended.value.code or 0)


@pytest.mark.sample(3, of="long commands")
def test_coupling_runs_its_grid_once_and_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coupling, "grid", tiny)
    store, told = tmp_path / "store", tmp_path / "told.json"
    arguments = ("coupling", "--store", str(store), "--seeds", "2", "--jobs", "1")
    assert call(*arguments, "--json", str(told), "--html", str(tmp_path / "page.html")) == 0
    out, log = capsys.readouterr()
    assert "others take" in log
    first = json.loads(told.read_text())["claims"][0]
    assert first["claim"][:30] in out  # the claim in its own words, not its label
    result = json.loads(told.read_text())
    assert result["schema"] == "toposcope/reproduce/2"
    assert result["runs_done"] == 6
    assert {cell["encoding"] for cell in result["cells"]} == {"rope", "none"}
    keys = {config.key() for config in tiny(coupling.SIZES["demo"], range(2))}
    assert {key for cell in result["cells"] for key in cell["runs"]} == keys
    text = (store / "reproduce-coupling.md").read_text()
    names = {number["what"] for number in result["numbers"]}
    assert names
    assert all(name in text for name in names)
    assert all(f"`{key[:8]}`" in text for key in keys)
    shown = (tmp_path / "page.html").read_text()
    assert any(name in shown for name in names)
    before = {path: path.stat().st_mtime_ns for path in store.glob("*/result.json")}
    assert call(*arguments, "--json", "-") == 0
    out, log = capsys.readouterr()
    assert "6 already" in log
    assert json.loads(out)["numbers"] == result["numbers"]
    assert {path: path.stat().st_mtime_ns for path in store.glob("*/result.json")} == before


def test_the_facts_of_dynamics_need_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("dynamics", "--size", "facts", "--markdown", "page.md") == 0
    assert "definiteness imposed" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_an_unknown_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="'large'"):
        coupling.find_size("large")
    assert call("coupling", "--size", "large", "--store", str(tmp_path / "store")) == 2
    assert not (tmp_path / "store").exists()
