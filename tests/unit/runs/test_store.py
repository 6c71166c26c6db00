"""The store: only the living hold claims, the index follows the directories, and errors say what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from toposcope._version import __version__
from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.core.saved import NAME as STATE
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
        with pytest.raises(BadValue, match="other one"):
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
    with pytest.raises(BadValue, match="file locks"):
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
    with pytest.raises(BadValue, match="2 runs"):
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
    with pytest.raises(BadValue, match="worked on"):
        store.remove(OTHER.key)
    assert claim.directory.exists()


def test_a_store_of_a_later_version(store: Store) -> None:
    store._db.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(BadFile, match="99"):
        Store(store.path)


@pytest.mark.parametrize("content", [b"this is no database, not at all" * 9, b"SQLite format 3\0" + bytes(200)])
def test_a_damaged_index(tmp_path: Path, content: bytes) -> None:
    (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(BadFile, match="not ours"):
        Store(tmp_path)


def test_no_store_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing"):
        Store(tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").touch()
    with pytest.raises(BadValue, match="--store"):
        Store(tmp_path / "file")


def test_a_full_disk_in_the_index(store: Store) -> None:
    store._db.execute("PRAGMA max_page_count = 4")
    with pytest.raises(BadValue, match="is full"):
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
    with pytest.raises(BadValue, match="another process"):
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
        with pytest.raises(BadFile, match="outside"):
            unpack(there, {name: b""})


# --- rows, by their columns -----------------------------------------------------------------------------------------


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[lock.Lock]:
    """The locks that were let go of."""
    found: list[lock.Lock] = []
    close = lock.Lock.close
    monkeypatch.setattr(lock.Lock, "close", lambda held: (found.append(held), close(held)))
    return found


def columns(store: Store, job: Job = JOB) -> dict[str, object]:
    """A row as it is stored."""
    cursor = store._db.execute("SELECT * FROM runs WHERE key = ?", (job.key,))
    return dict(zip([each[0] for each in cursor.description], cursor.fetchone(), strict=True))


def recent(text: object) -> bool:
    moment = datetime.fromisoformat(str(text))
    return moment.tzinfo is not None and abs(datetime.now(UTC) - moment) < timedelta(minutes=5)


def test_times_and_versions_of_a_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Created when queued, started and heard of when claimed, finished at the end; by which version."""
    store.add([JOB])
    row = columns(store)
    assert (row["kind"], json.loads(str(row["config"])), row["toposcope"]) == (JOB.kind, JOB.config, __version__)
    assert recent(row["created"])
    assert str(row["created"]).endswith("+00:00")
    assert "." not in str(row["created"])
    assert [row[name] for name in ("started", "heartbeat", "finished", "owner", "summary", "words")] == [None] * 6
    claim = claimed(store)
    row = columns(store)
    assert recent(row["started"])
    assert (row["heartbeat"], row["finished"]) == (row["started"], None)
    store._change("UPDATE runs SET heartbeat = 'long ago', toposcope = 'old' WHERE key = ?", (JOB.key,))
    store.beat(JOB.key)
    assert recent(columns(store)["heartbeat"])
    store.fail(claim, "no memory")
    row = columns(store)
    assert recent(row["finished"])
    assert (row["owner"], row["status"]) == (None, "failed")
    store._change("UPDATE runs SET heartbeat = 'long ago' WHERE key = ?", (JOB.key,))
    store.beat(JOB.key)
    assert columns(store)["heartbeat"] == "long ago", "only a run that is worked on is heard of"
    claim = claimed(store)
    row = columns(store)
    assert (row["words"], row["finished"], row["toposcope"]) == (None, None, __version__)
    write_result(claim.directory, {"accuracy": 0.5})
    assert store.finish(claim)["accuracy"] == 0.5
    row = columns(store)
    assert recent(row["finished"])
    assert (row["status"], row["owner"], row["words"]) == ("done", None, None)


def test_a_named_owner_is_kept_and_a_given_back_run_has_none(store: Store) -> None:
    claim = store.claim(JOB, "machine 7")
    assert isinstance(claim, Claim)
    assert (claim.job, claim.directory, claim.remark) == (JOB, store.directory(JOB.key), None)
    assert columns(store)["owner"] == "machine 7"
    assert store.claim(JOB) == Busy("machine 7")
    store.release(claim)
    assert (columns(store)["status"], columns(store)["owner"]) == ("queued", None)
    store.fail(claimed(store, OTHER), "gone")
    with Store(store.path) as second:
        failed = store.get(OTHER.key)
        assert failed is not None
        second.release(Claim(OTHER, store.directory(OTHER.key), lock.take(store.directory(OTHER.key), "x")))
        assert status(store, OTHER) == "failed", "only what runs is given back"


@pytest.mark.parametrize("how", ["finish", "fail", "release", "found", "finished without a result"])
def test_every_way_out_lets_go_of_the_lock(store: Store, closed: list[lock.Lock], how: str) -> None:
    claim = claimed(store)
    if how in ("finish", "found"):
        write_result(claim.directory, {"accuracy": 0.5})
    if how == "finish":
        store.finish(claim)
    elif how == "fail":
        store.fail(claim, "words")
    elif how == "release":
        store.release(claim)
    elif how == "found":
        claim.held.close()
        assert isinstance(store.claim(JOB), Finished)
    else:
        with pytest.raises(BadFile, match="no result"):
            store.finish(claim)
        assert columns(store)["status"] == "failed"
        assert "no result" in str(columns(store)["words"])
    assert claim.held in closed
    held = lock.take(store.directory(JOB.key), "us")
    assert held is not None
    held.close()


@pytest.mark.parametrize("where", ["write_job", "require_plain", "tidy"])
def test_a_claim_that_fails_lets_go_of_the_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch, closed: list[lock.Lock], where: str
) -> None:
    def broken(*_: object) -> None:
        raise BadFile("broken")

    with monkeypatch.context() as patch:
        patch.setattr(f"toposcope.runs.store.{where}", broken)
        with pytest.raises(BadFile, match="broken"):
            store.claim(JOB)
    assert len(closed) == 1
    claimed(store)


def test_a_row_that_changed_under_the_claim_is_somebody_elses(
    store: Store, monkeypatch: pytest.MonkeyPatch, closed: list[lock.Lock]
) -> None:
    """The row is read, then changed by another process, then claimed: the state named is not there any more."""
    store.add([JOB])
    get, asked = Store.get, []

    def late(self: Store, key: str) -> object:
        row = get(self, key)
        asked.append(key)
        if len(asked) == 2:
            self._change("UPDATE runs SET status = 'running', owner = 'them' WHERE key = ?", (key,))
        return row

    monkeypatch.setattr(Store, "get", late)
    assert isinstance(store.claim(JOB), Busy)
    assert len(closed) == 1
    assert columns(store)["owner"] == "them"


def test_a_result_that_does_not_count_is_remarked_on(store: Store) -> None:
    finish(store)
    (store.directory(JOB.key) / "result.json").write_text("{ half")
    again = store.claim(JOB)
    assert isinstance(again, Claim)
    assert again.remark is not None
    assert "result.json" in again.remark
    row = columns(store)
    assert (row["status"], row["summary"]) == ("running", None)


def test_the_state_of_a_finished_run_is_cleared_away(store: Store) -> None:
    finish(store)
    state = store.directory(JOB.key) / STATE
    state.write_bytes(b"left behind")
    assert isinstance(store.claim(JOB), Finished)
    assert not state.exists()
    store._change("UPDATE runs SET status = 'queued' WHERE key = ?", (JOB.key,))
    state.write_bytes(b"left behind")
    assert isinstance(store.claim(JOB), Finished)
    assert not state.exists()
    assert store.result(JOB) is not None
    assert store.result(OTHER) is None


def test_a_finished_run_is_read_without_a_lock(store: Store) -> None:
    finish(store)
    held = lock.take(store.directory(JOB.key), "somebody who looks")
    assert held is not None
    assert isinstance(store.claim(JOB), Finished)
    held.close()


def test_repair_counts_what_it_mends_and_leaves_the_rest(store: Store, closed: list[lock.Lock]) -> None:
    jobs = {name: Job(f"0{i}cc", "some:work", {"seed": i}) for i, name in enumerate(("failed", "dead", "alive"))}
    store.fail(claimed(store, jobs["failed"]), "words")
    claimed(store, jobs["dead"]).held.close()
    alive = claimed(store, jobs["alive"])
    store.add([JOB])  # queued, and nothing begun
    before = len(closed)
    assert store.repair() == 1
    assert len(closed) == before + 1
    assert [status(store, job) for job in jobs.values()] == ["failed", "queued", "running"]
    assert columns(store, jobs["dead"])["owner"] is None
    assert status(store) == "queued"
    store.release(alive)
    assert store.repair() == 0


def test_repair_of_a_done_row_without_a_result_and_of_a_lost_directory(store: Store) -> None:
    finish(store)
    (store.directory(JOB.key) / "result.json").unlink()
    assert store.repair() == 1
    assert (columns(store)["status"], columns(store)["summary"]) == ("queued", None)
    store.fail(claimed(store, OTHER), "words")
    shutil.rmtree(store.directory(OTHER.key))
    assert store.repair() == 1
    assert (columns(store, OTHER)["status"], columns(store, OTHER)["owner"]) == ("queued", None)
    assert store.repair() == 0


def test_repair_passes_over_what_is_no_run(store: Store, tmp_path: Path) -> None:
    """Links, files, and directories whose run belongs elsewhere; the runs after them are mended all the same."""
    finish(store, OTHER)
    shutil.copytree(store.directory(OTHER.key), store.path / "00ab")
    (store.path / "0000").symlink_to(store.directory(OTHER.key))
    (store.path / "file").write_text("none")
    (store.path / "00").mkdir()
    store._change("DELETE FROM runs", ())
    assert store.repair() == 1
    assert [row.key for row in store.rows()] == [OTHER.key]
    assert status(store, OTHER) == "done"


def test_an_emptied_directory_of_a_done_run_is_run_again(store: Store) -> None:
    finish(store)
    shutil.rmtree(store.directory(JOB.key))
    claim = claimed(store)
    row = columns(store)
    assert (row["status"], row["summary"], row["owner"]) == ("running", None, lock.here())
    write_result(claim.directory, {"accuracy": 0.25})
    store.finish(claim)
    assert columns(store)["status"] == "done"
    assert json.loads(str(columns(store)["summary"])) == {"accuracy": 0.25}


def test_a_run_that_is_removed_under_the_claim_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "get", lambda *_: None)
    with pytest.raises(BadValue, match="was removed"):
        store.claim(JOB)
    monkeypatch.undo()
    claimed(store)


@pytest.mark.parametrize("key", ["../out", "", "x" * 200, "a/b"])
def test_a_key_is_no_path(store: Store, key: str) -> None:
    with pytest.raises(BadFile, match="no key"):
        store.directory(key)
    for act in (store.remove, lambda key: store.claim(Job(key, "some:work", {}))):
        with pytest.raises(BadFile):
            act(key)


def test_a_link_in_the_place_of_a_run_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (store.path / JOB.key).symlink_to(tmp_path / "elsewhere")
    for act in (store.claim, lambda job: store.remove(job.key), store.result):
        with pytest.raises(BadFile, match="a link"):
            act(JOB)
    assert (tmp_path / "elsewhere").is_dir()


def test_a_store_is_closed_with_its_context_and_made_with_its_parents(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b") as made:
        made.add([JOB])
        assert made.path == tmp_path / "a" / "b"
    with pytest.raises(Exception, match="closed"):
        made.rows()
    with Store(str(tmp_path / "a" / "b"), create=False) as again:
        assert [row.key for row in again.rows()] == [JOB.key]
        assert again.get("0000") is None
