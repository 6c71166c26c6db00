"""The store: only the living hold claims, the index follows the directories, and errors say what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.runs import lock
from toposcope.runs.directory import pack, read_job, unpack, write_result
from toposcope.runs.jobs import Job
from toposcope.runs.store import INDEX, Busy, Claim, Finished, Store, disk_is_full, said_plainly

JOB = Job("00aa", "some:work", {"task": "distance", "seed": 0})
OTHER = Job("00bb", "some:work", {"task": "count", "seed": 1})
HOLD = """
import sys, pathlib
from toposcope.runs import lock
assert lock.take(pathlib.Path(sys.argv[1]), "the other one")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def claimed(store: Store, job: Job = JOB) -> Claim:
    claim = store.claim(job)
    assert isinstance(claim, Claim)
    return claim


def finish(store: Store, job: Job = JOB, **result: object) -> None:
    claim = claimed(store, job)
    write_result(claim.directory, {"accuracy": 0.5, "curve": [1, 2]} | result)
    store.finish(claim)


def status(store: Store, job: Job = JOB) -> str:
    row = store.get(job.key)
    assert row is not None
    return row.status


def test_the_life_of_a_run(store: Store) -> None:
    store.add([JOB, OTHER])
    assert [(row.job, row.status) for row in store.rows()] == [(JOB, "queued"), (OTHER, "queued")]
    claim = claimed(store)
    row = store.get(JOB.key)
    assert row is not None
    assert (row.status, row.owner) == ("running", lock.here())
    assert read_job(claim.directory) == JOB
    write_result(claim.directory, {"accuracy": 0.5, "curve": [1, 2]})
    store.finish(claim)
    row = store.get(JOB.key)
    assert row is not None
    assert (row.status, row.owner, row.summary) == ("done", None, {"accuracy": 0.5})
    again = store.claim(JOB)
    assert isinstance(again, Finished)
    assert again.result["curve"] == [1, 2]
    store.add([JOB])
    assert status(store) == "done", "adding it again does not undo it"


def test_a_run_is_claimed_once_even_by_the_same_process(store: Store) -> None:
    claim = claimed(store)
    with Store(store.path) as second:
        assert second.claim(JOB) == Busy(lock.here())
        store.release(claim)
        claimed(second)


def test_a_failed_run_keeps_its_words_and_may_be_claimed_again(store: Store) -> None:
    store.fail(claimed(store), "no memory")
    row = store.get(JOB.key)
    assert row is not None
    assert (row.status, row.words) == ("failed", "no memory")
    claimed(store)
    row = store.get(JOB.key)
    assert row is not None
    assert (row.status, row.words) == ("running", None)


@pytest.mark.parametrize("heartbeat", ["1970-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"])
def test_life_and_death_do_not_depend_on_the_clock(store: Store, heartbeat: str) -> None:
    claim = claimed(store)
    store._change("UPDATE runs SET heartbeat = ?", (heartbeat,))
    assert isinstance(store.claim(JOB), Busy), "alive, however long ago it was heard of"
    assert store.repair() == 0
    claim.held.close()  # what the system does when the owner dies
    assert status(store) == "running"
    assert isinstance(store.claim(JOB), Claim), "dead, however recently it was heard of"


def test_a_killed_owner_is_noticed(store: Store) -> None:
    store.add([JOB])
    store.directory(JOB.key).mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.directory(JOB.key))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        assert store.claim(JOB) == Busy("the other one")
        with pytest.raises(BadValue, match="being worked on by the other one"):
            store.remove(JOB.key)
        owner.kill()
    claimed(store)


def test_a_lock_is_held_until_the_last_holder_lets_go(tmp_path: Path) -> None:
    held = lock.take(tmp_path, "us")
    assert held is not None
    handed_on = os.dup(held.descriptor)  # as a worker receives it
    held.close()
    assert lock.take(tmp_path, "them") is None
    os.close(handed_on)
    mine = lock.take(tmp_path, "them")
    assert mine is not None
    assert lock.holder(tmp_path) == "them"
    mine.close()


def test_a_lock_on_a_removed_directory_locks_nobody_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(store)
    directory, is_still = store.directory(JOB.key), lock._is_still

    def removed_meanwhile(path: Path, descriptor: int) -> bool:
        monkeypatch.setattr(lock, "_is_still", is_still)
        path.unlink()
        return is_still(path, descriptor)

    monkeypatch.setattr(lock, "_is_still", removed_meanwhile)
    held = lock.take(directory, "us")
    assert held is not None
    assert held.path.stat().st_ino == os.fstat(held.descriptor).st_ino
    held.close()


def test_no_locks_on_this_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(BadValue, match="offers no file locks"):
        lock.take(tmp_path, "us")


def test_repair_without_any_index(store: Store) -> None:
    finish(store, accuracy=0.75)
    store.release(claimed(store, OTHER))
    store.close()
    (store.path / INDEX).unlink()
    with Store(store.path, create=False) as fresh:
        assert fresh.rows() == []
        assert fresh.repair() == 2
        assert {row.key: (row.status, row.config) for row in fresh.rows()} == {
            JOB.key: ("done", JOB.config),
            OTHER.key: ("queued", OTHER.config),
        }
        found = fresh.get(JOB.key)
        assert found is not None
        assert found.summary == {"accuracy": 0.75}
        assert fresh.repair() == 0


def test_repair_of_each_disagreement(store: Store) -> None:
    finish(store)
    (store.directory(JOB.key) / "result.json").write_text("{ half")
    store.claim(JOB)  # a damaged result is none
    assert status(store) == "running"
    assert not (store.directory(JOB.key) / "result.json").exists(), "it was set aside"
    store._change("UPDATE runs SET status = 'done' WHERE key = ?", (JOB.key,))
    assert store.repair() == 1
    assert status(store) == "queued"
    finish(store, OTHER)
    shutil.rmtree(store.directory(OTHER.key))
    assert store.repair() == 1
    assert status(store, OTHER) == "queued"
    (store.path / "not a run").mkdir()
    assert store.repair() == 0


def test_a_result_whose_row_was_never_written_is_found_by_the_next_claim(store: Store) -> None:
    """A kill between the two leaves a row that says too little."""
    claim = claimed(store)
    write_result(claim.directory, {"accuracy": 0.5, "curve": [1, 2]})
    store.release(claim)
    assert status(store) == "queued"
    again = store.claim(JOB)
    assert isinstance(again, Finished)
    assert again.result["accuracy"] == 0.5
    row = store.get(JOB.key)
    assert row is not None
    assert (row.status, row.summary) == ("done", {"accuracy": 0.5})


def test_a_removal_lets_go_of_its_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(store)
    closed: list[lock.Lock] = []
    close = lock.Lock.close
    monkeypatch.setattr(lock.Lock, "close", lambda held: (closed.append(held), close(held)))
    store.remove(JOB.key)
    assert len(closed) == 1
    store.remove(JOB.key)  # nothing there: nothing to let go of
    assert len(closed) == 1


def test_keys_by_their_beginning(store: Store) -> None:
    store.add([JOB, OTHER])
    assert store.find("00A").key == JOB.key
    with pytest.raises(BadValue, match="begins the keys of 2 runs"):
        store.find("00")
    for unknown in ("77", ""):
        with pytest.raises(NotFound, match="runs ls"):
            store.find(unknown)


def test_removal_takes_directory_and_row(store: Store) -> None:
    finish(store)
    store.remove(JOB.key)
    assert store.rows() == []
    assert not store.directory(JOB.key).exists()
    claim = claimed(store, OTHER)
    with pytest.raises(BadValue, match="Stop that first"):
        store.remove(OTHER.key)
    assert claim.directory.exists()


def test_a_store_of_a_later_version(store: Store) -> None:
    store._db.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(BadFile, match=r"later version.*schema is 99.*Update Toposcope"):
        Store(store.path)


@pytest.mark.parametrize("content", [b"this is no database, not at all" * 9, b"SQLite format 3\0" + bytes(200)])
def test_a_damaged_index(tmp_path: Path, content: bytes) -> None:
    (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(BadFile, match="move it away"):
        Store(tmp_path)


def test_no_store_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no runs"):
        Store(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").touch()
    with pytest.raises(BadValue, match="Choose another directory"):
        Store(tmp_path / "file")


def test_a_full_disk_in_the_index(store: Store) -> None:
    store._db.execute("PRAGMA max_page_count = 4")
    with pytest.raises(BadValue, match=r"is full. Nothing is lost"):
        store.add([Job(f"{i:016x}", "some:work", {"padding": "x" * 4000}) for i in range(20)])
    assert store.rows() == [], "half of it is not there"


def test_a_full_disk_in_a_directory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("toposcope.core.files.os.fsync", full)
        with pytest.raises(BadValue, match="is full") as caught:
            store.claim(JOB)
    assert disk_is_full(caught.value)
    claimed(store)


def test_locked_for_too_long(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.runs.index.PATIENCE", 0.05)
    blocker = sqlite3.connect(store.path / INDEX, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BadValue, match="locked by another process"):
        Store(store.path)
    blocker.close()


def test_errors_of_ours_pass_through() -> None:
    with pytest.raises(NotFound), said_plainly(Path()):
        raise NotFound("as it is")


def test_files_travel_and_the_last_checkpoint_goes(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "model").mkdir(parents=True)
    for name in ("checkpoint.pt", "model/config.json", ".lock", "run.json", ".x.tmp"):
        (here / name).write_text(name)
    sent = pack(here)
    assert sent == {"checkpoint.pt": b"checkpoint.pt", "model/config.json": b"model/config.json"}
    there.mkdir()
    (there / "run.json").write_text("stays")
    unpack(there, sent)
    assert pack(there) == sent
    final = {"result.json": json.dumps({}).encode(), "model/config.json": b"new"}
    unpack(there, final)
    assert pack(there) == final
    assert (there / "run.json").read_text() == "stays"
    for name in ("../out", "/out"):
        with pytest.raises(BadFile, match="outside its run"):
            unpack(there, {name: b""})
