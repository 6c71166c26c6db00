"""The index of a store: one SQLite table, opened for what it is and nothing else.

The file may come from anybody. It must be a regular file whose schema is ours to the letter: no view, no trigger, no
other table; then no query of ours can do anything but read and write rows. Statements have limits of size and time.

Who only looks takes a copy into memory: no lock, no journal, nothing written. Without a journal beside the file, and
with the same count of changes before and after, the copy is of one moment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadFile, BadValue, NotFound, ToposcopeError
from toposcope.core.printable import printable
from toposcope.core.untrusted import INDEX as LARGEST
from toposcope.core.untrusted import open_file, parse_json
from toposcope.runs.jobs import Job

INDEX = "index.sqlite"
SCHEMA = 1
PATIENCE = 60.0  # seconds to wait for another process's write, and for a query of ours
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
_OURS = {("table", "runs", TABLE.strip()), ("index", "sqlite_autoindex_runs_1", None)}
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 16 << 20,  # of a text, and of a row
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 64,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 2,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
_MAGIC = b"SQLite format 3\0"
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")  # at the end of a journal: it names a further file, to be removed
_HEAD = 100
KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
STATES = ("queued", "running", "done", "failed")
_LOOKS, _PAUSE = 50, 0.02  # for a moment at which nobody writes


@dataclass(frozen=True)
class RunRow:
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


class RunIndex:
    """The table of runs of one store. One thread at a time."""

    def __init__(self, store: Path, connection: sqlite3.Connection) -> None:
        self.store, self._db, self._end = store, connection, 0.0
        connection.set_progress_handler(lambda: time.monotonic() > self._end, 10_000)
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
            self.execute(f"PRAGMA {pragma}")

    @classmethod
    def work(cls, store: Path) -> RunIndex:
        """The index in its file, to be written; made where there is none."""
        _look_at_files(store)
        connection = sqlite3.connect(store / INDEX, timeout=PATIENCE, isolation_level=None)
        try:
            made = cls(store, connection)
            if made._is_empty():
                made._make()
            made._check()
        except BaseException:
            connection.close()
            raise
        return made

    @classmethod
    def copy(cls, store: Path) -> RunIndex | None:
        """The index as it is, in memory; None where there is none, or where a process died while it wrote."""
        content = _moment(store)
        if not content:
            return None
        connection = sqlite3.connect(":memory:", isolation_level=None)
        try:
            connection.deserialize(content)
            made = cls(store, connection)
            if made._is_empty():  # its first sweep is just beginning
                connection.close()
                return None
            made._check()
        except BaseException:
            connection.close()
            raise
        return made

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """One statement, for at most `PATIENCE` seconds."""
        self._end = time.monotonic() + PATIENCE
        return self._db.execute(statement, values)

    def executemany(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """One statement for many rows."""
        self._end = time.monotonic() + PATIENCE
        self._db.executemany(statement, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def rows(self) -> list[RunRow]:
        """All runs, in the order they were added."""
        return [self._row(each) for each in self.execute("SELECT * FROM runs ORDER BY rowid").fetchall()]

    def get(self, key: str) -> RunRow | None:
        """The run of exactly this key."""
        found = self.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone()
        return self._row(found) if found else None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    # inside

    def _is_empty(self) -> bool:
        return not self._version() and not self._schema()

    def _make(self) -> None:
        with self.transaction():
            if self._is_empty():  # nobody was quicker
                self.execute(TABLE)
                self.execute(f"PRAGMA user_version = {SCHEMA}")

    def _check(self) -> None:
        """Refuse whatever is not ours."""
        index = self.store / INDEX
        if self._version() > SCHEMA:
            raise BadFile(
                f"{printable(index)} was made by a later version of Toposcope (its schema is {self._version()}, "
                f"this version reads up to {SCHEMA}). Update Toposcope, or use another directory with --store."
            )
        if self._version() != SCHEMA or self._schema() != _OURS:
            raise damaged(index, "it is not the table of runs alone: another program's database, or a hostile one")
        found = self.execute("PRAGMA quick_check(1)").fetchone()
        if found != ("ok",):
            raise damaged(index, found[0] if found else "it cannot be checked")

    def _schema(self) -> set[tuple[str, str, str | None]]:
        found = self.execute("SELECT type, name, sql FROM sqlite_master LIMIT 9").fetchall()
        return {(kind, name, sql) for kind, name, sql in found}

    def _version(self) -> int:
        return int(self.execute("PRAGMA user_version").fetchone()[0])

    def _row(self, values: tuple[Any, ...]) -> RunRow:
        index = self.store / INDEX
        told = dict(zip((each.name for each in fields(RunRow)), values, strict=True))
        for name, value in told.items():
            may_lack = name in ("owner", "heartbeat", "summary", "words", "started", "finished")
            if not isinstance(value, str) and not (value is None and may_lack):
                raise damaged(index, f"the {name} of a run is {type(value).__name__}")
        if told["status"] not in STATES or not KEY.fullmatch(told["key"]):
            raise damaged(index, f"a run is {told['key']:.20} and {told['status']:.20}")
        for name in ("config", "summary"):
            if told[name] is not None:
                told[name] = parse_json(told[name], f"a {name} in {printable(index)}", finite=True)
                if not isinstance(told[name], dict):
                    raise damaged(index, f"a {name} is no object")
        return RunRow(**told)


def chosen(rows: Iterable[RunRow], prefix: str, store: Path) -> RunRow:
    """The one run whose key begins so."""
    wanted = prefix.strip().lower()
    found = [row for row in rows if wanted and row.key.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"no run in {store} has a key that begins with '{prefix}'. 'toposcope runs ls' lists them.")
    raise BadValue(
        f"'{prefix}' begins the keys of {len(found)} runs ({', '.join(row.key for row in found[:3])}"
        f"{', ...' if len(found) > 3 else ''}). Give more of the key."
    )


# ------------------------------------------------------------ files


def _look_at_files(store: Path) -> None:
    """Complain where SQLite would be led elsewhere: by a link, or by a journal that names another file."""
    index = store / INDEX
    if _status(index) is not None:
        with open_file(index, inside=store, links=False) as file:
            _require_ours(index, file.read(_HEAD))
    for ending in ("-wal", "-shm"):
        if _status(Path(f"{index}{ending}")) is not None:
            raise damaged(index, f"a file {INDEX}{ending} lies beside it, and we never write one")
    journal = Path(f"{index}-journal")
    if _status(journal) is not None:
        with contextlib.suppress(NotFound), open_file(journal, inside=store, links=False) as file:  # it may be gone
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_NAMES_ANOTHER)))
            if file.read() == _NAMES_ANOTHER:
                raise damaged(index, "its journal names another file, which ours never do")


def _require_ours(index: Path, head: bytes) -> None:
    if head and not head.startswith(_MAGIC):
        raise damaged(index, "it is no SQLite database")
    if head and head[18:20] != b"\x01\x01":
        raise damaged(index, "it is written in another way than ours")


def _moment(store: Path) -> bytes | None:
    """The index's bytes at a moment when nobody wrote."""
    index, journal = store / INDEX, store / f"{INDEX}-journal"
    for _ in range(_LOOKS):
        if _status(index) is None:
            return None
        with open_file(index, most=LARGEST, inside=store, links=False) as file:
            before = os.pread(file.fileno(), _HEAD, 0)  # it counts the changes
            quiet = not _size(journal)  # the journal is there before a page is written, and until all are
            content = file.read(os.fstat(file.fileno()).st_size)
            quiet = quiet and not _size(journal)
            after = os.pread(file.fileno(), _HEAD, 0)
        if quiet and before == content[:_HEAD] == after:
            _require_ours(index, before)
            return content
        time.sleep(_PAUSE)
    return None


def _status(path: Path) -> os.stat_result | None:
    """Of the entry itself, were it a link; None where there is none."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _size(path: Path) -> int:
    status = _status(path)
    return 0 if status is None else status.st_size or not stat.S_ISREG(status.st_mode)


# ------------------------------------------------------------ errors


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


def damaged(index: Path, why: object) -> BadFile:
    """What to say of an index that is not as we write it."""
    return BadFile(
        f"{printable(index)} is damaged or not ours ({printable(why)}). It is only an index: move it away, and the "
        "next 'toposcope sweep' makes a new one from the runs' directories."
    )


def _from_database(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> ToposcopeError:
    index, code = path / INDEX, getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return full(path)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BadValue(
            f"{index} has been locked by another process for {PATIENCE:.0f} s. Try again when it has ended."
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return BadValue(f"{index} cannot be written ({error}). Choose a directory of your own with --store.")
    return damaged(index, error)


def _from_disk(path: Path, error: OSError) -> ToposcopeError:
    if disk_is_full(error):
        return full(path)
    where = error.filename or path
    return BadValue(f"{where} cannot be used: {error.strerror or error}. Choose another directory with --store.")


def dump(value: Any) -> str:
    """An object as a row holds it."""
    return json.dumps(dict(value), sort_keys=True, ensure_ascii=False)
