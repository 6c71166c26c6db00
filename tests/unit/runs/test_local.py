"""Local workers: deaths are survived, last words kept, and a full disk stops everything without losing anything."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.reference.runs.fake import expected, job
from toposcope.core.errors import BadValue
from toposcope.runs import local
from toposcope.runs.directory import read_result, write_result
from toposcope.runs.jobs import Job, Report
from toposcope.runs.queue import Queue, RunEvent
from toposcope.runs.store import Store

ROOT = Path(__file__).parents[3]
HERE = "tests.unit.runs.test_local"


def report_threads(config: Mapping[str, Any], directory: Path, report: Report) -> None:
    print("noise on standard output")  # must not be taken for a message
    write_result(directory, {name: os.environ.get(name) for name in local.THREADS})


def refuse(config: Mapping[str, Any], directory: Path, report: Report) -> None:
    raise BadValue("impossible from the start")


def stumble(config: Mapping[str, Any], directory: Path, report: Report) -> None:
    raise RuntimeError("a bug")


def fill_the_disk(config: Mapping[str, Any], directory: Path, report: Report) -> None:
    raise BadValue("cannot write") from OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


def sweep(store: Path, jobs: list[Job], **options: Any) -> tuple[list[RunEvent], dict[str, Any]]:
    events: list[RunEvent] = []
    threads = options.pop("threads", 1)
    with Store(store) as opened:
        local.run(Queue(opened, jobs, watch=events.append, **options), jobs=2, threads=threads)
        return events, {row.key: row for row in opened.rows()}


def test_a_worker_that_dies_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs = [job("mortal", die_at=3, deaths=2, log=str(log)), job("other")]
    events, rows = sweep(tmp_path / "store", jobs, retries=2)
    assert {row.status for row in rows.values()} == {"done"}
    assert (read_result(tmp_path / "store" / jobs[0].key, jobs[0]) or {})["chain"] == expected("mortal")
    again = [event.data["words"] for event in events if event.what == "retried"]
    assert len(again) == 2
    assert all("SIGKILL" in words and "last words" in words for words in again)
    noted = log.read_text().splitlines()
    assert Counter(line for line in noted if line.startswith("step")) == {f"step mortal {i}": 1 for i in range(1, 7)}


def test_a_run_that_dies_too_often_has_failed(tmp_path: Path) -> None:
    jobs = [job("mortal", die_at=1, deaths=9), job("other")]
    events, rows = sweep(tmp_path / "store", jobs, retries=1)
    assert (rows[jobs[0].key].status, rows[jobs[1].key].status) == ("failed", "done")
    assert "last words" in rows[jobs[0].key].words
    assert [event.what for event in events if event.job == jobs[0] and event.what != "progress"] == [
        "started",
        "retried",
        "started",
        "failed",
    ]
    _, rows = sweep(tmp_path / "store", [job("mortal", die_at=1, deaths=0)])
    assert rows[jobs[0].key].status == "done", "another sweep tries it again"


def test_mistakes_are_not_tried_again_but_accidents_are(tmp_path: Path) -> None:
    jobs = [Job("aa", f"{HERE}:refuse", {}), Job("bb", f"{HERE}:stumble", {}), Job("cc", "no-such-kind", {})]
    events, rows = sweep(tmp_path / "store", jobs, retries=2)
    assert {row.status for row in rows.values()} == {"failed"}
    assert Counter(event.job.key for event in events if event.what == "started") == {"aa": 1, "bb": 3, "cc": 1}
    assert rows["aa"].words == "impossible from the start"
    assert "RuntimeError" in rows["bb"].words
    assert jobs[2].kind in rows["cc"].words


def test_a_full_disk_stops_the_sweep_and_loses_nothing(tmp_path: Path) -> None:
    jobs = [Job("aa", f"{HERE}:fill_the_disk", {}), job("other", steps=400)]
    with Store(tmp_path) as store:
        with pytest.raises(BadValue, match="is full"):
            local.run(Queue(store, jobs), jobs=2)
        assert {row.status for row in store.rows()} == {"queued"}
    _, rows = sweep(tmp_path, [job("other", steps=4)])
    assert rows[jobs[1].key].status == "done", "the others can go on when there is room"


def test_threads_are_capped_in_every_worker(tmp_path: Path) -> None:
    job = Job("aa", f"{HERE}:report_threads", {})
    sweep(tmp_path, [job], threads=3)
    assert dict.fromkeys(local.THREADS, "3").items() <= (read_result(tmp_path / "aa", job) or {}).items()


def test_one_worker_does_many_runs_in_order(tmp_path: Path) -> None:
    log, events = tmp_path / "log", []
    jobs = [job(f"job {i}", steps=1, log=str(log)) for i in range(4)]
    with Store(tmp_path / "store") as store:
        local.run(Queue(store, [*jobs, jobs[0]], watch=events.append), jobs=1)
    assert [line for line in log.read_text().splitlines() if line[:3] == "end"] == [f"end job {i}" for i in range(4)]
    assert Counter(event.what for event in events)["done"] == 4
    _, rows = sweep(tmp_path / "store", jobs)
    assert len(rows) == 4
    assert len(log.read_text().splitlines()) == 12, "nothing was done again"
