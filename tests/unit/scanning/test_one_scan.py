"""The command, the library, the web page and compare make one scan: the same JSON, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.tiny import write_llama
from toposcope.cli import main
from toposcope.scanning import compare
from toposcope.scanning.result import ScanResult

TIMES = ("provenance.seconds",)


def fields(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and word of a JSON value with its place, but for times."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from fields(each, f"{at}.{name}".lstrip("."))
    elif isinstance(value, list):
        yield f"{at}.length", len(value)
        for number, each in enumerate(value):
            yield from fields(each, f"{at}[{number}]")
    elif at not in TIMES:
        yield at, value


def by_command(model: Path, out: Path, *options: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["scan", str(model), "--json", str(out), *options])
    assert not ended.value.code
    return json.loads(out.read_text())


def by_page(model: Path) -> Any:
    pytest.importorskip("starlette", reason="needs the [web] extra")
    from starlette.testclient import TestClient

    from toposcope.web.app import Served, application
    from toposcope.web.library import Library
    from toposcope.web.models import ModelRegistry

    registry = ModelRegistry([str(model)], with_installed=False)
    client = TestClient(application(Served(Library(None), registry)))
    name = registry.list()[0]["id"]
    assert client.get(f"/api/models/{name}/result").status_code == 404
    client.get(f"/api/models/{name}/scan")
    registry.get(name).wait(60)
    found = client.get(f"/api/models/{name}/result").json()
    registry.close()
    return found


def by_compare(model: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[ScanResult] = []
    whole = compare.scan

    def kept(*given: Any, **options: Any) -> ScanResult:
        made.append(whole(*given, **options))
        return made[-1]

    monkeypatch.setattr(compare, "scan", kept)
    toposcope.compare(model, str(model))
    assert len(made) == 2
    return [json.loads(each.json()) for each in made]


def test_one_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_llama(tmp_path / "model")
    ours = json.loads(toposcope.scan(model).json())
    expected = dict(fields(ours))
    assert len(expected) > 1000
    for theirs in (by_command(model, tmp_path / "a.json"), by_page(model)):
        assert dict(fields(theirs)) == expected
    with toposcope.load(model) as opened:
        assert dict(fields(json.loads(toposcope.scan(opened).json()))) == expected

    options = ("--no-layer-sums", "--context", "64")
    narrow = by_command(model, tmp_path / "b.json", *options)
    for theirs in by_compare(model, monkeypatch):
        assert dict(fields(theirs)) == dict(fields(narrow))
    assert narrow["heads"] == ours["heads"]
    assert narrow["spectra"] == ours["spectra"]
