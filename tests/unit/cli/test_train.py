"""`toposcope train`: a run that is kept, resumed, shared, and explained when it cannot be."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from toposcope.cli import main
from toposcope.runs import jobs, lock
from toposcope.runs.jobs import Report
from toposcope.runs.store import Store
from toposcope.runs.words import duration

SETTINGS = ["steps=6", "width=16", "layers=1", "heads=2", "ff=16", "batch=4", "probes=false"]
TINY = [word for setting in SETTINGS for word in ("--set", setting)]
DISTANCE = ["train", "--task", "distance", "--encoding", "rope", *TINY]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def refuse(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(str(ended.value.code))


def the_key() -> str:
    with Store("runs", create=False) as store:
        (row,) = store.rows()
    return row.key


def test_a_run_is_trained_once_and_then_shown(capsys: pytest.CaptureFixture[str]) -> None:
    call(*DISTANCE, "--json", "first.json")
    first = capsys.readouterr().out
    call(*DISTANCE, "--json", "-")
    told = [json.loads(Path("first.json").read_text()), json.loads(capsys.readouterr().out)]
    assert [each.pop("trained_now") for each in told] == [True, False]
    for each in told:
        del each["provenance"]["seconds"]
    assert told[0] == told[1]
    assert told[0]["schema"] == "toposcope/train/2"
    assert (round(told[0]["floor"], 3), told[0]["ceiling"]) == (0.244, 1.0)
    assert max(len(line) for line in first.splitlines()) <= 80
    assert told[0]["key"] == the_key()
    assert Path(told[0]["directory"], "model", "config.json").exists()


def test_out_keeps_the_run_outside_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    call(*DISTANCE, "--out", "mine/run")
    assert Path("mine/run/result.json").exists()
    assert not Path("runs").exists()
    call(*DISTANCE, "--out", "mine/run")
    assert "trained earlier" in capsys.readouterr().out
    other = [word.replace("distance", "count") for word in DISTANCE]
    assert refuse(*other, "--out", "mine/run") == 2
    said = capsys.readouterr().err
    assert all(each in said for each in ("another run", "distance", "rope", "seed 0"))


def test_someone_else_has_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    call(*DISTANCE)
    Path("runs", the_key(), "result.json").unlink()
    for more, place in (((), Path("runs", the_key())), (("--out", "o"), Path("o"))):
        place.mkdir(exist_ok=True)
        held = lock.take(place, "machine:77")
        assert held is not None
        assert refuse(*DISTANCE, *more) == 2
        assert "machine:77" in capsys.readouterr().err
        held.close()
    call(*DISTANCE)


@pytest.mark.parametrize("how", ["store", "out"])
def test_a_full_disk_is_said_and_the_run_goes_on_later(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(config: Mapping[str, Any], directory: Path, report: Report, **more: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    more = () if how == "store" else ("--out", "o")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train", full)
        assert refuse(*DISTANCE, *more) == 2
    assert "is full" in capsys.readouterr().err
    if how == "store":
        with Store("runs") as store:
            assert [row.status for row in store.rows()] == ["queued"]
    call(*DISTANCE, *more)


def test_an_interrupted_run_is_resumed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(config: Mapping[str, Any], directory: Path, report: Report, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train", interrupted)
        assert refuse(*DISTANCE) == 130
    assert "same command" in capsys.readouterr().err
    with Store("runs") as store:
        assert [row.status for row in store.rows()] == ["queued"]
    call(*DISTANCE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--task", "distanse"], "'distance'"),
        (["--encoding", "roppe"], "'rope'"),
        (["--profile", "laptop-x"], "'laptop-"),
        (["--variant", "publish"], "'published'"),
        (["--quirk", "relu-mpl"], "'relu_mlp'"),
        (["--set", "heads=3"], "3"),
        (["--seed", "-1"], "seed"),
        (["--set", "task.betwen=3"], "'between'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_said_before_anything_is_made(
    change: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refuse(*DISTANCE, *change) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.34, "2.3 s"), (21.4, "21 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (None, "-")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
