"""A journal of measurements: one line of JSON each, on the disk before the next begins, so that none is made twice.

The first line says what determines the numbers. A journal that says something else is not continued. A last line that
was cut short by a crash is dropped; its measurement is made again. Every entry carries a sum of itself, so that one
which was changed later is noticed, also where it is still sound JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.core.untrusted import RESULT

FORMAT = "toposcope/journal/2"  # 2: with sums
SUM = "sha256"


def key_of(about: Mapping[str, Any]) -> str:
    """The sha256 of what determines the numbers, whatever the order of its entries."""
    return hashlib.sha256(_line(about).encode()).hexdigest()


class Journal:
    """The entries made so far, and a way to add one. Held by one process at a time."""

    def __init__(self, path: str | Path, about: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.key = key_of(about)
        self.entries: list[dict[str, Any]] = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # no buffer: it would write a failed line again when closed; no link: a directory from elsewhere could
            # have one that leads to any file of the user's; no waiting for the other end of a pipe
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            self._file = os.fdopen(os.open(self.path, flags, 0o666), "ab+", buffering=0)
        except OSError as error:
            raise NotFound(f"cannot write the journal {self.path}: {error.strerror}. Give another --out.") from error
        try:
            self._refuse_what_is_no_file()
            self._hold()
            self._read(about)
        except BaseException:
            self._file.close()
            raise

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write one entry; it is on the disk when this returns."""
        self._write({**entry, SUM: key_of(entry)[:16]})
        self.entries.append(dict(entry))

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------- inside
    def _hold(self) -> None:
        try:
            import fcntl
        except ImportError:  # pragma: no cover - where there is no POSIX nothing guards against a second process
            return
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadValue(f"another process is writing {self.path}. Wait for it, or give another --out.") from error

    def _refuse_what_is_no_file(self) -> None:
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > RESULT:
            raise BadFile(f"{self.path} is no journal, but a device, a pipe or a giant. Give another --out.")

    def _read(self, about: Mapping[str, Any]) -> None:
        try:
            self._file.seek(0)
            content = self._file.read()
        except OSError as error:
            raise BadFile(f"cannot read the journal {self.path}: {error.strerror}. Give another --out.") from error
        whole = content[: content.rfind(b"\n") + 1]
        first = {"format": FORMAT, "key": self.key, "about": dict(about)}
        lines = whole.splitlines()
        if not lines and not _line(first).encode().startswith(content):
            raise self._strange()
        header, *entries = (self._parsed(line, number) for number, line in enumerate(lines, 1)) if lines else (first,)
        if header.get("format") != FORMAT:
            raise self._strange()
        if header.get("key") != self.key:
            raise BadFile(
                f"{self.path} holds measurements of something else ({_difference(header.get('about'), about)}). "
                "Give another --out, or remove the journal to begin anew."
            )
        self.entries = [self._checked(entry, number) for number, entry in enumerate(entries, 2)]
        self._length = len(whole)
        try:
            if len(whole) < len(content):
                self._file.truncate(len(whole))
        except OSError as error:
            raise BadFile(f"cannot mend the journal {self.path}: {error.strerror}. Give another --out.") from error
        if not lines:
            self._write(first)

    def _strange(self) -> BadFile:
        return BadFile(
            f"{self.path} is not a journal of this version of toposcope. Give another --out, or move it away."
        )

    def _checked(self, entry: dict[str, Any], number: int) -> dict[str, Any]:
        """The entry without its sum, if that is the right one."""
        told = entry.pop(SUM, None)
        try:
            same = told == key_of(entry)[:16]
        except ValueError:  # not a number
            same = False
        if not same:
            raise self._damaged(number)
        return entry

    def _damaged(self, number: int) -> BadFile:
        return BadFile(
            f"line {number} of {self.path} is damaged. Remove that line: only its measurement is lost. Or remove the "
            "journal to begin anew."
        )

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._damaged(number)
        return found

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = _line(entry).encode() + b"\n"
        try:
            written = 0
            while written < len(line):  # the last bytes of a disk may take a part of it
                written += self._file.write(line[written:]) or 0
            os.fsync(self._file.fileno())
            self._length += len(line)
        except OSError as error:
            with contextlib.suppress(OSError):  # if this fails as well, the next reader drops the torn line
                self._file.truncate(self._length)
            raise BadValue(
                f"cannot write to {self.path}: {error.strerror}. Free some space and start again: it will continue."
            ) from error


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, allow_nan=False, separators=(",", ":"))


def _difference(before: Any, now: Mapping[str, Any]) -> str:
    """The entries that differ, in words."""
    old = before if isinstance(before, dict) else {}
    names = [name for name in sorted({*old, *now}) if old.get(name) != now.get(name)]
    return "; ".join(f"{name}: {_short(old.get(name))} there, {_short(now.get(name))} here" for name in names[:3])


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 24 else text[:12] + "..."
