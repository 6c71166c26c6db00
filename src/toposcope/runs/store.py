"""The store: a directory of runs with an SQLite index of them.

    <store>/index.sqlite      one row per run: what, in which state, how it ended (index.py)
    <store>/<key>/            the run itself (directory.py), with the lock of whoever works on it (lock.py)

Rows are written after the facts they state: a result is in its directory before its row says done. A kill in
between leaves a row that says too little, and whoever works on the store next (a claim, `repair`) mends it from the
directory. Even without the index nothing is lost. A claim is the run's lock and then one UPDATE that names the
state it expects, so two sweeps on one store cannot both have a run. Who only looks uses listing.py.

The journal is SQLite's rollback journal, not the write-ahead log: the latter needs memory shared between all
writers, which network disks do not offer, and with a few writes per run its speed would buy nothing. Times in rows
are for people; nothing is decided by them.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toposcope._version import __version__
from toposcope.core import saved
from toposcope.core.errors import BadFile, BadValue
from toposcope.core.printable import printable
from toposcope.core.untrusted import require_plain
from toposcope.runs import lock
from toposcope.runs.directory import (
    read_job,
    read_result,
    set_aside,
    summary,
    tidy,
    write_job,
)
from toposcope.runs.index import INDEX, KEY, RunIndex, RunRow, chosen, disk_is_full, dump, full, said_plainly
from toposcope.runs.jobs import Job
from toposcope.runs.listing import require_runs

__all__ = ["INDEX", "Busy", "Claim", "Finished", "RunRow", "Store", "disk_is_full", "full", "said_plainly"]


@dataclass(frozen=True)
class Claim:
    """A run that is ours to work on, until the lock is closed."""

    job: Job
    directory: Path
    held: lock.Lock
    remark: str | None = None  # on a result that was found there and does not count


@dataclass(frozen=True)
class Busy:
    """A run that a living process works on."""

    owner: str


@dataclass(frozen=True)
class Finished:
    """A run with nothing left to do."""

    result: dict[str, Any]


class Store:
    """A directory of runs and its index. Use it as a context manager; one thread at a time."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path)
        if not create:
            require_runs(self.path)
        with said_plainly(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._db = RunIndex.work(self.path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index."""
        self._db.close()

    def directory(self, key: str) -> Path:
        """Where the run of this key lives: in the store, whatever a foreign index may say."""
        if not KEY.fullmatch(key):
            raise BadFile(
                f"{printable(key, 80)!r} is no key of a run: {self.path / INDEX} is damaged or hostile. Move it away."
            )
        if (self.path / key).is_symlink():
            raise BadFile(f"{self.path / key} is a link, and a store holds its runs themselves. Remove it.")
        return self.path / key

    # reading

    def rows(self) -> list[RunRow]:
        """All runs, in the order they were added."""
        with said_plainly(self.path):
            return self._db.rows()

    def get(self, key: str) -> RunRow | None:
        """The run of exactly this key."""
        with said_plainly(self.path):
            return self._db.get(key)

    def find(self, prefix: str) -> RunRow:
        """The one run whose key begins so."""
        return chosen(self.rows(), prefix, self.path)

    def result(self, job: Job) -> dict[str, Any] | None:
        """The result of a run, which its directory holds once it is done; None before that."""
        return read_result(self.directory(job.key), job)

    # the life of a run

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue runs; those already known keep their state."""
        now = _now()
        values = [(job.key, job.kind, dump(job.config), now, __version__) for job in jobs]
        with said_plainly(self.path), self._db.transaction():
            self._db.executemany(
                "INSERT INTO runs (key, kind, config, status, created, toposcope) VALUES (?, ?, ?, 'queued', ?, ?) "
                "ON CONFLICT (key) DO NOTHING",
                values,
            )

    def claim(self, job: Job, owner: str | None = None) -> Claim | Busy | Finished:
        """Take a run to work on it, unless it is done or a living process has it."""
        directory, owner = self.directory(job.key), owner or lock.here()
        known = self.get(job.key)
        if known is not None and known.status == "done":
            with contextlib.suppress(BadFile):
                if (result := read_result(directory, job)) is not None:
                    saved.clear(directory)
                    return Finished(result)  # nothing changes that any more: no lock is needed
        with said_plainly(self.path):
            directory.mkdir(parents=True, exist_ok=True)
            held = lock.take(directory, owner)
            if held is None:
                return Busy(lock.holder(directory))
            try:
                require_plain(directory)
                result, remark = self._result_or_remark(directory, job)
                if result is not None:
                    self._done(job, result)
                    saved.clear(directory)
                    held.close()
                    return Finished(result)
                tidy(directory)
                write_job(directory, job)
                self.add([job])
                if not self._mark_running(job.key, owner):
                    held.close()
                    return Busy(owner)
            except BaseException:
                with contextlib.suppress(OSError):
                    held.close()
                raise
        return Claim(job, directory, held, remark)

    def beat(self, key: str) -> None:
        """Note that the run is being worked on, for whoever reads the list."""
        self._change("UPDATE runs SET heartbeat = ? WHERE key = ? AND status = 'running'", (_now(), key))

    def finish(self, claim: Claim) -> dict[str, Any]:
        """Index the result that the run's directory holds, and give the run back."""
        try:
            result = self._left(claim)
        except BadFile as error:
            self.fail(claim, str(error))
            raise
        try:
            self._done(claim.job, result)
        finally:
            claim.held.close()
        return result

    def fail(self, claim: Claim, words: str) -> None:
        """Mark the run as failed, with its last words, and give it back."""
        try:
            self._change(
                "UPDATE runs SET status = 'failed', owner = NULL, words = ?, finished = ? WHERE key = ?",
                (words, _now(), claim.job.key),
            )
        finally:
            claim.held.close()

    def release(self, claim: Claim) -> None:
        """Give an unfinished run back; its directory keeps what was done."""
        try:
            self._change(
                "UPDATE runs SET status = 'queued', owner = NULL WHERE key = ? AND status = 'running'",
                (claim.job.key,),
            )
        finally:
            claim.held.close()

    def remove(self, key: str) -> None:
        """Delete a run, its directory and its row, unless a living process works on it."""
        directory = self.directory(key)
        with said_plainly(self.path):
            held = lock.take(directory, lock.here()) if directory.is_dir() else None
            if directory.is_dir() and held is None:
                raise BadValue(f"run {key} is being worked on by {lock.holder(directory)}. Stop that first.")
            try:
                if directory.is_dir():
                    shutil.rmtree(directory)
                self._change("DELETE FROM runs WHERE key = ?", (key,))  # last: by it a removal can be given again
            finally:
                if held:
                    held.close()

    def repair(self) -> int:
        """Make the index agree with the directories; the number of rows that were mended."""
        known, mended = {row.key: row for row in self.rows()}, 0
        for directory in sorted(path for path in self.path.iterdir() if path.is_dir() and not path.is_symlink()):
            row, job = known.pop(directory.name, None), read_job(directory)
            if job is None or job.key != directory.name:
                continue
            mended += self._mend(directory, job, row)
        for row in known.values():  # their directories are gone
            if row.status != "queued":
                mended += self._change(
                    "UPDATE runs SET status = 'queued', owner = NULL, summary = NULL WHERE key = ? AND status = ?",
                    (row.key, row.status),
                )
        return mended

    # inside

    def _left(self, claim: Claim) -> dict[str, Any]:
        result = read_result(claim.directory, claim.job)
        if result is None:
            raise BadFile(f"{claim.directory} holds no result, though its work ended. Run it again.")
        return result

    def _result_or_remark(self, directory: Path, job: Job) -> tuple[dict[str, Any] | None, str | None]:
        """What a run has done; or why what was found there does not count. That is then taken out of the way."""
        try:
            return read_result(directory, job), None
        except BadFile as error:
            set_aside(directory)
            return None, str(error)

    def _mend(self, directory: Path, job: Job, row: RunRow | None) -> int:
        with contextlib.suppress(BadFile):  # one that does not count is none
            if (result := read_result(directory, job)) is not None:
                if row is not None and row.status == "done":
                    return 0
                self._done(job, result)
                return 1
        if row is None:
            self.add([job])
            return 1
        if row.status == "done":
            return self._change("UPDATE runs SET status = 'queued', summary = NULL WHERE key = ?", (job.key,))
        if row.status != "running":
            return 0
        with said_plainly(self.path):
            held = lock.take(directory, lock.here())
        if held is None:
            return 0
        try:  # the lock was free: the owner is dead
            return self._change(
                "UPDATE runs SET status = 'queued', owner = NULL WHERE key = ? AND status = 'running' AND owner IS ?",
                (job.key, row.owner),
            )
        finally:
            held.close()

    def _mark_running(self, key: str, owner: str) -> bool:
        """From the state we saw to running, in one statement. We hold the lock, so a running row's owner is dead."""
        seen = self.get(key)
        if seen is None or seen.status == "done":  # done without a result: its directory was emptied
            seen = self._queue_again(key)
        return bool(
            self._change(
                "UPDATE runs SET status = 'running', owner = ?, heartbeat = ?, started = ?, finished = NULL, "
                "words = NULL, toposcope = ? WHERE key = ? AND status = ? AND owner IS ?",
                (owner, (now := _now()), now, __version__, key, seen.status, seen.owner),
            )
        )

    def _queue_again(self, key: str) -> RunRow:
        self._change("UPDATE runs SET status = 'queued', owner = NULL, summary = NULL WHERE key = ?", (key,))
        row = self.get(key)
        if row is None:
            raise BadValue(f"run {key} was removed from {self.path} by another process. Run the command again.")
        return row

    def _done(self, job: Job, result: Mapping[str, Any]) -> None:
        self.add([job])
        self._change(
            "UPDATE runs SET status = 'done', owner = NULL, summary = ?, words = NULL, finished = ? "
            "WHERE key = ? AND status != 'done'",
            (dump(summary(result)), _now(), job.key),
        )

    def _change(self, statement: str, values: tuple[Any, ...]) -> int:
        with said_plainly(self.path):
            return self._db.execute(statement, values).rowcount


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
