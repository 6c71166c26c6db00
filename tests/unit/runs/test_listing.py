"""Listing: directories are the truth, the index adds to it, and nobody notices that somebody looked."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from tests.unit.runs.making import trained
from toposcope.core.errors import BadFile, NotFound
from toposcope.runs import index as indexes
from toposcope.runs.directory import write_result
from toposcope.runs.index import INDEX, RunIndex
from toposcope.runs.jobs import Job
from toposcope.runs.listing import listing
from toposcope.runs.store import Claim, Store

JOBS = [Job(f"{number:04x}", "train", {"task": "count", "seed": number}) for number in range(4)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Runs that are done, failed, under way and waiting."""
    with Store(tmp_path / "store") as store:
        store.add(JOBS)
        done, failed, running = (store.claim(job) for job in JOBS[:3])
        for claim in (done, failed, running):
            assert isinstance(claim, Claim)
        write_result(done.directory, trained())
        store.finish(done)
        store.fail(failed, "no memory")
        running.held.close()
    return tmp_path / "store"


def states(place: Path) -> list[str]:
    return [row.status for row in listing(place)]


def test_the_states_of_a_store(place: Path) -> None:
    assert states(place) == ["done", "failed", "running", "queued"]
    rows = listing(place)
    assert (rows[0].summary or {})["accuracy"] == 0.875
    assert rows[1].words == "no memory"


def test_the_directories_are_the_truth(place: Path) -> None:
    with sqlite3.connect(place / INDEX) as index:
        index.execute("UPDATE runs SET status = 'done', summary = '{\"accuracy\": 0.99}', config = '{}'")
    index.close()
    rows = listing(place)
    assert [row.status for row in rows] == ["done", "queued", "queued", "queued"]
    assert [(row.summary or {}).get("accuracy") for row in rows] == [0.875, None, None, None]
    assert rows[1].config == JOBS[1].config
    (place / INDEX).unlink()
    assert states(place) == ["done", "queued", "queued"], "the last had no directory yet"
    (place / JOBS[0].key / "result.json").write_text("{}")
    (row, *_) = listing(place)
    assert (row.status, row.summary) == ("queued", None)
    assert row.words


def test_a_run_that_does_not_say_what_it_is(place: Path) -> None:
    (place / JOBS[0].key / "run.json").write_text('{"key": "another", "config": {}}')
    assert states(place) == ["queued", "failed", "running", "queued"]
    (place / JOBS[1].key).rename(place / "elsewhere")
    (place / JOBS[1].key).symlink_to(place / "elsewhere")
    assert states(place) == ["queued", "failed", "running", "queued"], "a link is no run"


def test_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("none", "file", "."):
        with pytest.raises(NotFound):
            listing(tmp_path / name)


def test_a_writer_that_died_leaves_the_directories(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_PAUSE", 0.0)
    (place / f"{INDEX}-journal").write_bytes(b"half a transaction")
    assert states(place) == ["done", "queued", "queued"]
    os.mkfifo(place / f"{INDEX}-shm")
    with pytest.raises(BadFile):
        Store(place)


def test_listing_while_others_write(place: Path) -> None:
    """Every copy is of one moment: each transaction writes the same words into all rows."""
    with Store(place) as store:
        store._change("UPDATE runs SET words = ?", ("0",))
    stop, seen = threading.Event(), []

    def write() -> None:
        with Store(place) as store:
            number = 0
            while not stop.is_set():
                number += 1
                store._change("UPDATE runs SET words = ?", (f"{number} " + "x" * 9000,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(60):
            copy = RunIndex.copy(place)
            if copy is not None:
                seen.append({row.words for row in copy.rows()})
                copy.close()
    finally:
        stop.set()
        writer.join()
    assert seen, "no moment was found at which nobody wrote"
    assert all(len(words) == 1 for words in seen)


def test_an_index_in_another_mode_or_of_another_kind(place: Path) -> None:
    sound = (place / INDEX).read_bytes()
    for wrong in (sound[:18] + b"\2\2" + sound[20:], b"no database" * 20, sound[: len(sound) // 2]):
        (place / INDEX).write_bytes(wrong)
        with pytest.raises(BadFile):
            listing(place)
        with pytest.raises(BadFile):
            Store(place)
    (place / INDEX).write_bytes(b"")
    assert states(place)[0] == "done", "made, and not yet filled"


@pytest.mark.parametrize(
    "change",
    [
        "config = 'nothing'",
        "config = '[]'",
        "config = '{\"a\": NaN}'",
        "summary = '{\"a\": 1e999}'",
        "words = x'00ff'",
        "key = '../' || key",
        "created = 7.5, words = zeroblob(9)",
    ],
)
def test_rows_that_we_do_not_write(place: Path, change: str) -> None:
    with sqlite3.connect(place / INDEX) as index:
        index.execute(f"UPDATE runs SET {change}")
    index.close()
    with pytest.raises(BadFile):
        listing(place)


def test_a_query_has_an_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = RunIndex.work(place)
    monkeypatch.setattr(indexes, "PATIENCE", 0.05)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        opened.execute("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n")
    opened.close()
