"""The store: a directory of runs with an SQLite index of them.

    <store>/index.sqlite      one row per run: what, in which state, how it ended
    <store>/<key>/            the run itself (directory.py), with the lock of whoever works on it (lock.py)

Rows are written after the facts they state: a result is in its directory before its row says done. A kill in
between leaves a row that says too little, and whoever meets it next (a claim, `repair`) mends it from the
directory. Even without the index nothing is lost. A claim is the run's lock and then one UPDATE that names the
state it expects, so two sweeps on one store cannot both have a run.

The journal is SQLite's rollback journal, not the write-ahead log: the latter needs memory shared between all
writers, which network disks do not offer, and with a few writes per run its speed would buy nothing. Times in rows
are for people; nothing is decided by them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from toposcope._version import __version__
from toposcope.errors import BadFile, BadValue, NotFound, ToposcopeError
from toposcope.runs import lock
from toposcope.runs.directory import Job, drop_state, read_job, read_result, summary, tidy, write_job

INDEX = "index.sqlite"
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
SCHEMA = 1
PATIENCE = 60.0  # seconds to wait for another process's write
TABLE = """
CREATE TABLE runs (
    key TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    config TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'done', 'failed')),
    owner TEXT,
    heartbeat TEXT,
    summary TEXT,
    words TEXT,
    created TEXT NOT NULL,
    started TEXT,
    finished TEXT,
    toposcope TEXT NOT NULL
)
"""


@dataclass(frozen=True)
class Row:
    """One run as the index knows it. `words` are the last words of a run that failed."""

    key: str
    kind: str
    config: dict[str, Any]
    status: str
    owner: str | None
    heartbeat: str | None
    summary: dict[str, Any] | None
    words: str | None
    created: str
    started: str | None
    finished: str | None
    toposcope: str

    @property
    def job(self) -> Job:
        """What the run is to do."""
        return Job(self.key, self.kind, self.config)


@dataclass(frozen=True)
class Claim:
    """A run that is ours to work on, until the lock is closed."""

    job: Job
    directory: Path
    held: lock.Lock


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
        if not create and not (self.path / INDEX).is_file() and not any(self.path.glob("*/run.json")):
            raise NotFound(
                f"{self.path} holds no runs. 'toposcope train' and 'toposcope sweep' make them; see --store."
            )
        with said_plainly(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path / INDEX, timeout=PATIENCE, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index."""
        self._db.close()

    def directory(self, key: str) -> Path:
        """Where the run of this key lives: in the store, whatever a foreign index may say."""
        if not _KEY.fullmatch(key):
            raise BadFile(
                f"{key[:80]!r} is no key of a run: {self.path / INDEX} is damaged or hostile. Move it away."
            )
        return self.path / key

    # reading

    def rows(self) -> list[Row]:
        """All runs, in the order they were added."""
        with said_plainly(self.path):
            found = self._db.execute("SELECT * FROM runs ORDER BY rowid").fetchall()
        return [_row(self.path, each) for each in found]

    def get(self, key: str) -> Row | None:
        """The run of exactly this key."""
        with said_plainly(self.path):
            found = self._db.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone()
        return _row(self.path, found) if found else None

    def find(self, prefix: str) -> Row:
        """The one run whose key begins so."""
        wanted = prefix.strip().lower()
        found = [row for row in self.rows() if wanted and row.key.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise NotFound(
                f"no run in {self.path} has a key that begins with '{prefix}'. 'toposcope runs ls' lists them."
            )
        raise BadValue(
            f"'{prefix}' begins the keys of {len(found)} runs ({', '.join(row.key for row in found[:3])}"
            f"{', ...' if len(found) > 3 else ''}). Give more of the key."
        )

    # the life of a run

    def add(self, jobs: Iterable[Job]) -> None:
        """Queue runs; those already known keep their state."""
        now = _now()
        values = [(job.key, job.kind, _dump(job.config), now, __version__) for job in jobs]
        with said_plainly(self.path), self._transaction():
            self._db.executemany(
                "INSERT INTO runs (key, kind, config, status, created, toposcope) VALUES (?, ?, ?, 'queued', ?, ?) "
                "ON CONFLICT (key) DO NOTHING",
                values,
            )

    def claim(self, job: Job, owner: str | None = None) -> Claim | Busy | Finished:
        """Take a run to work on it, unless it is done or a living process has it."""
        directory, owner = self.directory(job.key), owner or lock.here()
        known = self.get(job.key)
        if known is not None and known.status == "done" and (result := read_result(directory)) is not None:
            drop_state(directory)
            return Finished(result)  # nothing changes that any more: no lock is needed
        with said_plainly(self.path):
            directory.mkdir(parents=True, exist_ok=True)
            held = lock.take(directory, owner)
            if held is None:
                return Busy(lock.holder(directory))
            try:
                result = read_result(directory)
                if result is not None:
                    self._done(job, result)
                    drop_state(directory)
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
        return Claim(job, directory, held)

    def beat(self, key: str) -> None:
        """Note that the run is being worked on, for whoever reads the list."""
        self._change("UPDATE runs SET heartbeat = ? WHERE key = ? AND status = 'running'", (_now(), key))

    def finish(self, claim: Claim) -> dict[str, Any]:
        """Index the result that the run's directory holds, and give the run back."""
        try:
            result = read_result(claim.directory)
            if result is None:
                raise BadFile(
                    f"{claim.directory} holds no result that can be read, though its work ended. Run it again."
                )
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
        for directory in sorted(path for path in self.path.iterdir() if path.is_dir()):
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

    def _mend(self, directory: Path, job: Job, row: Row | None) -> int:
        if row is not None and row.status == "done" and (directory / "result.json").is_file():
            return 0
        result = read_result(directory)
        if result is not None:
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

    def _queue_again(self, key: str) -> Row:
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
            (_dump(summary(result)), _now(), job.key),
        )

    def _change(self, statement: str, values: tuple[Any, ...]) -> int:
        with said_plainly(self.path):
            return self._db.execute(statement, values).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _prepare(self) -> None:
        """Make the table where there is none; refuse what a later version made."""
        if self._version() == 0:
            with self._transaction():
                if self._version() == 0:  # nobody was quicker
                    self._db.execute(TABLE)
                    self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        if self._version() > SCHEMA:
            raise BadFile(
                f"{self.path / INDEX} was made by a later version of Toposcope (its schema is {self._version()}, "
                f"this version reads up to {SCHEMA}). Update Toposcope, or use another directory with --store."
            )

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def said_plainly(path: Path) -> Iterator[None]:
    """Turn what the disk and the database may say into what a user can do."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _from_database(path, error) from error
    except ToposcopeError:
        raise
    except OSError as error:
        raise _from_disk(path, error) from error


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that no space is left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def full(path: Path) -> BadValue:
    """What to say when the disk is full."""
    return BadValue(
        f"the disk of {path} is full. Nothing is lost: what was finished is kept, and what was begun goes on "
        "from its last checkpoint. Free some space and give the same command again."
    )


def _from_database(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> ToposcopeError:
    index, code = path / INDEX, getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return full(path)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return _damaged(index, error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BadValue(
            f"{index} has been locked by another process for {PATIENCE:.0f} s. Try again when it has ended."
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return BadValue(f"{index} cannot be written ({error}). Choose a directory of your own with --store.")
    return BadFile(f"{index} cannot be used: {error}. Move it away, and 'toposcope runs ls' makes a new one.")


def _damaged(index: Path, error: Exception) -> BadFile:
    return BadFile(
        f"{index} is damaged ({error}). It is only an index: move it away, and 'toposcope runs ls' makes a new one "
        "from the runs' directories."
    )


def _from_disk(path: Path, error: OSError) -> ToposcopeError:
    if disk_is_full(error):
        return full(path)
    where = error.filename or path
    return BadValue(f"{where} cannot be used: {error.strerror or error}. Choose another directory with --store.")


def _row(path: Path, values: tuple[Any, ...]) -> Row:
    try:
        key, kind, config, status, owner, heartbeat, short, *rest = values
        found = Row(
            key, kind, json.loads(config), status, owner, heartbeat, json.loads(short) if short else None, *rest
        )
        if not isinstance(found.config, dict) or not isinstance(found.summary, dict | None):
            raise TypeError("a configuration and a summary are objects")  # noqa: TRY301
        if not all(isinstance(text, str) for text in (key, kind, status, found.created)):
            raise TypeError("a run without a name or state")  # noqa: TRY301
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(path / INDEX, error) from error
    return found


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), sort_keys=True, ensure_ascii=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
