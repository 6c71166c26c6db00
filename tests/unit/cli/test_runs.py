"""`toposcope runs`: lists, shows, removes and exports, without torch, from the directories if need be."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.runs.making import trained
from toposcope.cli import main
from toposcope.runs.directory import write_result
from toposcope.runs.jobs import Job
from toposcope.runs.store import INDEX, Claim, Store

KEYS = ("00aa11", "00bb22", "ffcc33")


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run done, one failed, one queued."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    jobs = [
        Job(
            key,
            "train",
            {"task": "distance", "encoding": f"rope:base={i}", "seed": i, "profile": "laptop-s", "quirks": []},
        )
        for i, key in enumerate(KEYS)
    ]
    with Store("runs") as store:
        store.add(jobs)
        done, failed = store.claim(jobs[0]), store.claim(jobs[1])
        assert isinstance(done, Claim)
        assert isinstance(failed, Claim)
        write_result(done.directory, trained())
        store.finish(done)
        store.fail(failed, "first line\nthe loss became nan")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["runs", *arguments])
    return int(str(ended.value.code or 0))


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    told = capsys.readouterr().out
    assert "87.5%" in told
    assert all(each in told for each in ("3 runs", "1 done", "1 queued", "1 failed"))
    assert max(len(line) for line in told.splitlines()) <= 80
    assert call("ls", "--status", "failed", "--json", "-") == 0
    assert [row["key"] for row in json.loads(capsys.readouterr().out)["runs"]] == ["00bb22"]


def test_the_list_needs_neither_torch_nor_the_index(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs", INDEX).unlink()
    script = "import sys; sys.modules['torch'] = None\nfrom toposcope.cli import main\nmain(['runs', '--json', '-'])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert {row["key"]: row["status"] for row in json.loads(out)["runs"]} == {"00aa11": "done", "00bb22": "queued"}


def test_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", "00a", "--json", "one.json") == 0
    shown = capsys.readouterr().out
    assert all(each in shown for each in ("87.5%", "floor 25.0", "ceiling 100.0"))
    assert json.loads(Path("one.json").read_text())["result"]["curve"] == trained()["curve"]
    assert call("show", "00b") == 0
    assert "became nan" in capsys.readouterr().out


def test_removal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("rm", "00a") == 2
    assert "Add --yes" in capsys.readouterr().err
    assert Path("runs", "00aa11").exists()
    with Store("runs") as store:
        claim = store.claim(Job("ffcc33", "train", {}))
        assert isinstance(claim, Claim)
        assert call("rm", "ff", "--yes") == 2
        assert "worked on" in capsys.readouterr().err
        store.release(claim)
    assert call("rm", "00a", "ff", "00aa", "--yes") == 0
    with Store("runs") as store:
        assert [row.key for row in store.rows()] == ["00bb22"]
    assert not Path("runs", "00aa11").exists()


def test_removal_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr("typer.confirm", lambda question: asked.append(question) or False)
    assert call("rm", "00a") == 1
    assert asked == ["Remove 1 run for good?"]
    assert Path("runs", "00aa11").exists()


def test_export(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("export", "all.csv") == 0
    assert call("export", "all.json") == 0
    with Path("all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["key"], row["status"], row["config.seed"], row["summary.accuracy"]) for row in rows] == [
        ("00aa11", "done", "0", "0.875"),
        ("00bb22", "failed", "1", ""),
        ("ffcc33", "queued", "2", ""),
    ]
    assert [row["key"] for row in json.loads(Path("all.json").read_text())["runs"]] == list(KEYS)
    capsys.readouterr()
    assert call("export", "-") == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show"], "one key"),
        (["show", "00"], "2 runs"),
        (["show", "77"], "no run"),
        (["rm"], "rm takes"),
        (["ls", "00"], "ls takes"),
        (["export"], "export takes"),
        (["export", "all.txt"], ".csv"),
        (["ls", "--status", "donne"], "'done'"),
        (["ls", "--store", "elsewhere"], "elsewhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    assert words in capsys.readouterr().err


def test_a_later_version_made_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Store("runs") as store:
        store._db.execute("PRAGMA user_version = 7")
    assert call("ls") == 2
    assert "Update Toposcope" in capsys.readouterr().err
