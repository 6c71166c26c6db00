"""A file mapped into memory, read-only, with every way of failing to open it turned into a sentence."""

from __future__ import annotations

import mmap
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toposcope.errors import BadFile, NotFound

Bytes = NDArray[np.uint8]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Say in a sentence why the system would not read `path`."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist. Check the path.") from error
    except PermissionError as error:
        raise BadFile(f"{path} may not be read: permission denied. Check the owner and mode of the file.") from error
    except IsADirectoryError as error:
        raise BadFile(f"{path} is a directory, and a file was expected. Point at a file in it.") from error
    except OSError as error:
        raise BadFile(f"{path} could not be read: {error.strerror or error}. Check the disk and the path.") from error


def regular_size(path: Path) -> int:
    """The size in bytes of a regular, non-empty file."""
    with readable(path):
        status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise BadFile(f"{path} is a directory, and a file was expected. Point at a file in it.")
    if not stat.S_ISREG(status.st_mode):
        raise BadFile(
            f"{path} is not a regular file but a device, pipe or socket. Save the checkpoint as a file first."
        )
    if status.st_size == 0:
        raise BadFile(f"{path} is empty (0 bytes), and a checkpoint was expected. Download or save it again.")
    return status.st_size


class MappedFile:
    """The bytes of a file, mapped: slicing costs nothing until the bytes are used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = regular_size(path)
        with readable(path), path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes: Bytes | None = np.frombuffer(self._map, dtype=np.uint8)
        self.size = len(self._bytes)

    @property
    def bytes(self) -> Bytes:
        if self._bytes is None:
            raise RuntimeError(f"{self.path} was closed, then read: a bug in the caller")
        return self._bytes

    @contextmanager
    def scattered(self, start: int, end: int) -> Iterator[None]:
        """Say that few of these bytes will be read, here and there: the system then does not read around them."""
        if not hasattr(self._map, "madvise"):
            yield
            return
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_RANDOM, first, end - first)
        try:
            yield
        finally:
            self._map.madvise(mmap.MADV_NORMAL, first, end - first)

    def release(self, start: int, end: int) -> None:
        """Say that these bytes were read and are not needed soon: their pages stop counting as our memory."""
        if hasattr(self._map, "madvise"):
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            whole = end // mmap.PAGESIZE * mmap.PAGESIZE - first
            if whole > 0:
                self._map.madvise(mmap.MADV_DONTNEED, first, whole)

    def close(self) -> None:
        """Let go of the mapping; the system unmaps it once no slice is left."""
        self._bytes = None
