"""Layers in several processes: the same result, the same journal, and no process left behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit import tiny
from tests.unit.scanning.test_resume import scan
from toposcope.core import interpreters
from toposcope.core.errors import BadValue
from toposcope.scanning import on_cores
from toposcope.scanning.options import ScanOptions


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.write_llama(tmp_path / "model", num_hidden_layers=5)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The workers that were started; all are gone in the end."""
    found: list[subprocess.Popen[bytes]] = []
    whole = subprocess.Popen

    def noted(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        found.append(whole(*given, **more))
        return found[-1]

    monkeypatch.setattr(interpreters.subprocess, "Popen", noted)
    monkeypatch.setattr(on_cores, "START", 0.0)
    yield found
    assert found
    assert all(process.returncode is not None for process in found)


@pytest.mark.sample(3, of="long commands")
def test_processes_say_what_threads_say(
    model: Path, tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    several = scan(model, tmp_path / "a.json", "--jobs", "2", "--out", str(out))
    assert len(started) == 2
    journal = (out / "journal.jsonl").read_text().splitlines()
    (out / "journal.jsonl").write_text("\n".join(journal[:3]) + "\n")  # two layers are kept
    assert scan(model, tmp_path / "b.json", "--jobs", "3", "--out", str(out)) == several
    assert len(started) == 5
    monkeypatch.setattr(on_cores, "START", 1e9)
    assert scan(model, tmp_path / "c.json") == several
    assert len(started) == 5


def test_an_interrupt_ends_the_workers(model: Path, started: list[Any]) -> None:
    kept: list[int] = []

    def interrupted(what: str, done: int, total: int) -> None:
        kept.append(done)
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        toposcope.scan(model, jobs=2, progress=interrupted)
    assert max(kept) == 1


def test_a_worker_that_finds_other_weights_says_so(model: Path, started: list[Any]) -> None:
    with toposcope.load(model) as opened:
        shutil.rmtree(model)
        tiny.write_llama(model, num_hidden_layers=5, rope_theta=500.0)
        with pytest.raises(BadValue, match="another checkpoint"):
            on_cores.run(
                opened,
                [0, 1],
                ScanOptions(context=64),
                lambda entry: None,
                where={"target": str(model), "family": None, "num_heads": None, "adapter": None},
                workers=2,
            )


def test_a_worker_that_is_lost_is_named(model: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters.sys, "executable", shutil.which("false") or sys.executable)
    with pytest.raises(BadValue, match="ended with code 1"):
        toposcope.scan(model, jobs=2)


def test_processes_are_for_many_small_layers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ScanOptions(context=64)
    with toposcope.load(model) as opened:
        every = range(5)
        assert not on_cores.pays(opened, every, asked, 2)  # done before an interpreter is up
        monkeypatch.setattr(on_cores, "START", 0.0)
        assert on_cores.pays(opened, every, asked, 2)
        assert not on_cores.pays(opened, every, asked, 1)
        assert not on_cores.pays(opened, [3], asked, 2)
        one = 8 * 16 * (4 + 2) * (4 + 4)  # a layer of the tiny model in float64
        monkeypatch.setattr(on_cores, "LARGEST_LAYER", one)
        assert on_cores.pays(opened, every, asked, 2)
        monkeypatch.setattr(on_cores, "LARGEST_LAYER", one - 1)
        assert not on_cores.pays(opened, every, asked, 2)


def test_a_process_of_a_scan_imports_nothing_slow() -> None:
    """Each of them pays for it before it begins."""
    slow = {"scipy.stats", "scipy.optimize", "scipy.special", "torch", "gguf"}
    code = f"import sys, toposcope.scanning.on_cores; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
