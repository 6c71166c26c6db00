"""A checkpoint's file, opened once and read by position.

Nothing is mapped into memory: a mapped file that is cut short ends the process, a read one comes up short and is
refused in a sentence. The file stays open: one that is replaced under its name goes on being read as it was. One that
is written to in place is refused at the next read, so that no two contents are mixed.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadFile
from toposcope.core.untrusted import open_file, readable

Bytes = NDArray[np.uint8]


class ByteFile(Protocol):
    """The bytes of a file, wherever it lies."""

    path: Path
    size: int

    def read(self, start: int, end: int) -> Bytes: ...

    def parts(self, start: int, end: int, step: int) -> Iterator[Bytes]: ...

    def rows(self, start: int, end: int, count: int, rows: NDArray[np.intp]) -> Bytes: ...

    def close(self) -> None: ...


Place = tuple[ByteFile, int, int]  # a file, and where in it a tensor begins and ends


class StoredFile:
    """The bytes of a file, read where they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_file(path) as file:
            self._descriptor = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._one_at_a_time = threading.Lock()
        self.size, _ = self._opened_as = self._stamp()
        if self.size == 0:
            raise BadFile(f"{path} is empty (0 bytes), and a checkpoint was expected. Download or save it again.")

    def read(self, start: int, end: int) -> Bytes:
        """These bytes, in memory of their own."""
        found = np.empty(end - start, dtype=np.uint8)
        self._fill(found, start)
        self.refuse_change()
        return found

    def parts(self, start: int, end: int, step: int) -> Iterator[Bytes]:
        """These bytes, so many at a time; what is yielded holds until the next."""
        buffer = np.empty(min(step, end - start), dtype=np.uint8)
        for at in range(start, end, step):
            part = buffer[: min(step, end - at)]
            self._fill(part, at)
            yield part
        self.refuse_change()

    def rows(self, start: int, end: int, count: int, rows: NDArray[np.intp]) -> Bytes:
        """Some of `count` equal rows that fill these bytes; the others stay on the disk."""
        width = (end - start) // max(count, 1)
        found = np.empty((len(rows), width), dtype=np.uint8)
        for place, row in zip(found, rows.tolist(), strict=True):
            self._fill(place, start + row * width)
        self.refuse_change()
        return found

    def refuse_change(self) -> None:
        """Raise unless size and date are those of the file that was opened."""
        if self._stamp() != self._opened_as:
            raise BadFile(
                f"{self.path} was written to while it was being read, so what was read of it may be a mix. "
                "Wait until it is complete, then start again."
            )

    def refuse_replaced(self) -> None:
        """Raise unless this is still the file under its name, which somebody else has opened as well."""
        with readable(self.path):
            same = os.path.samestat(os.fstat(self._open()), self.path.stat())
        if not same:
            raise BadFile(f"{self.path} was replaced while it was being opened. Start again.")
        self.refuse_change()

    def close(self) -> None:
        self._close()

    # ------------------------------------------------------------- inside
    def _stamp(self) -> tuple[int, int]:
        with readable(self.path):
            status = os.fstat(self._open())
        return status.st_size, status.st_mtime_ns

    def _open(self) -> int:
        if not self._close.alive:
            raise RuntimeError(f"{self.path} was closed, then read: a bug in the caller")
        return self._descriptor

    def _fill(self, buffer: Bytes, at: int) -> None:
        done = 0
        while done < len(buffer):
            with readable(self.path):
                count = self._into(buffer[done:], at + done)
            if count == 0:
                raise BadFile(
                    f"{self.path} ends at byte {at + done:,} and had {self.size:,} when it was opened: it was cut "
                    "short while it was being read. Wait until it is complete, then start again."
                )
            done += count

    def _into(self, buffer: Bytes, at: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._open(), [buffer.data], at)
        with self._one_at_a_time:  # pragma: no cover - where there is no POSIX a file has one place to read from
            os.lseek(self._open(), at, os.SEEK_SET)
            found = os.read(self._open(), len(buffer))
            buffer[: len(found)] = np.frombuffer(found, dtype=np.uint8)
            return len(found)
