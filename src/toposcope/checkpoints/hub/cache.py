"""Our cache of what was read of models on the hub: ranges of files, each in a small file of its own.

    hub/HOST/models--org--name/blobs/CONTENT/START-END-CHECKSUM   some bytes of a file, known by its content's hash
    hub/HOST/models--org--name/trees/COMMIT.json                  the files of a commit and their sizes
    hub/HOST/models--org--name/refs/REVISION                      the commit that a branch or tag stood for last

A range is written under another name and renamed, so processes may share the cache and none finds half of one under
its name. Its length and its checksum are compared when it is used: what another program, a full disk or a loss of
power left there is removed and fetched again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
import weakref
import zlib
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from toposcope.checkpoints.hub.http import RepoFile
from toposcope.checkpoints.hub.name import is_commit
from toposcope.core.cache import SETTING, cache_root
from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.core.files import make_directory, write_bytes, write_json
from toposcope.core.untrusted import INDEX, read_bytes, read_json

HUB = "hub"
CHUNK = 8 << 20  # bytes in one file at most: what a killed process may have to fetch again
HELD = 4  # ranges in memory
CHUNK_NAME = re.compile(r"([0-9a-f]{1,14})-([0-9a-f]{1,14})-([0-9a-f]{8})")
Range = tuple[int, int]


@dataclass(frozen=True)
class Chunk:
    """A range of a file that is here, and the checksum of its bytes."""

    start: int
    end: int
    checksum: int

    @property
    def name(self) -> str:
        return f"{self.start:x}-{self.end:x}-{self.checksum:08x}"


def _place(chunk: Chunk) -> Range:
    return chunk.start, chunk.end


class RangeCache:
    """The ranges of one file that were fetched so far, by whichever process."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self._size = size
        self._lock = threading.RLock()
        self._chunks: list[Chunk] = []  # by start
        self._held: OrderedDict[Chunk, bytes] = OrderedDict()
        self.refresh()

    def refresh(self) -> None:
        """Learn what other processes have fetched."""
        found: list[Chunk] = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._directory):
                said = CHUNK_NAME.fullmatch(entry.name)
                chunk = None if said is None else Chunk(*(int(number, 16) for number in said.groups()))
                if chunk is not None and chunk.start < chunk.end <= min(self._size, chunk.start + CHUNK):
                    found.append(chunk)
        with self._lock:
            self._chunks = sorted(found, key=_place)

    def missing(self, start: int, end: int) -> list[Range]:
        """What of a range is not here, in order."""
        gaps: list[Range] = []
        with self._lock:
            for chunk in islice(self._chunks, self._first(start), None):
                if chunk.end <= start:
                    continue
                if chunk.start >= end:
                    break
                if chunk.start > start:
                    gaps.append((start, chunk.start))
                start = max(start, chunk.end)
        return [*gaps, (start, end)] if start < end else gaps

    def add(self, start: int, content: bytes) -> None:
        """Keep these bytes of the file."""
        chunk = Chunk(start, start + len(content), zlib.crc32(content))
        with _keeping(self._directory):
            make_directory(self._directory)
            write_bytes(self._directory / chunk.name, content, durable=False)
        with self._lock:
            insort(self._chunks, chunk, key=_place)

    def fill(self, buffer: Any, start: int) -> bool:
        """Copy the bytes from `start` on into an array; False where some are not here, or no longer sound."""
        at, end = start, start + len(buffer)
        while at < end:
            chunk = self._holding(at)
            content = None if chunk is None else self._content(chunk)
            if chunk is None or content is None:
                return False
            upto = min(end, chunk.end)
            buffer[at - start : upto - start] = memoryview(content)[at - chunk.start : upto - chunk.start]
            at = upto
        return True

    def _holding(self, at: int) -> Chunk | None:
        with self._lock:
            near = takewhile(lambda chunk: chunk.start <= at, islice(self._chunks, self._first(at), None))
            return max((chunk for chunk in near if chunk.end > at), key=lambda chunk: chunk.end, default=None)

    def _first(self, at: int) -> int:
        """The number of the first range that may reach beyond this byte: none is longer than `CHUNK`."""
        return bisect_left(self._chunks, at - CHUNK, key=lambda chunk: chunk.start)

    def _content(self, chunk: Chunk) -> bytes | None:
        """The bytes of a range, if they are as they were written; else it is forgotten."""
        with self._lock:
            if chunk in self._held:
                self._held.move_to_end(chunk)
                return self._held[chunk]
        path = self._directory / chunk.name
        try:
            content = read_bytes(path, most=CHUNK, inside=self._directory, links=False)
        except (BadFile, NotFound):
            content = b""
        sound = len(content) == chunk.end - chunk.start and zlib.crc32(content) == chunk.checksum
        with self._lock:
            if sound:
                self._held[chunk] = content
                while len(self._held) > HELD:
                    self._held.popitem(last=False)
            elif chunk in self._chunks:
                self._chunks.remove(chunk)
        if not sound:
            with contextlib.suppress(OSError):
                path.unlink()
        return content if sound else None


class RepoCache:
    """What is kept of one repository; in a directory that goes with the process where the cache is switched off."""

    def __init__(self, endpoint: str, repo: str) -> None:
        root = cache_root()
        if root is None:
            place = Path(tempfile.mkdtemp(prefix="toposcope-"))
            weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        else:
            place = root / HUB
        self.directory = place / quote(urlsplit(endpoint).netloc, safe="") / folder_of(repo)

    def ranges(self, file: RepoFile) -> RangeCache:
        """The cached ranges of a file."""
        return RangeCache(self.directory / "blobs" / f"{file.content}-{file.size:x}", file.size)

    def commit(self, revision: str) -> str | None:
        """The commit that a revision stood for when it was last asked for."""
        try:
            found = read_bytes(self._ref(revision), most=64).decode("ascii").strip()
        except (BadFile, NotFound, UnicodeDecodeError):
            return None
        return found if is_commit(found) else None

    def keep_commit(self, revision: str, commit: str) -> None:
        if self.commit(revision) != commit:
            with _keeping(self.directory):
                make_directory(self._ref(revision).parent)
                write_bytes(self._ref(revision), commit.encode())

    def tree(self, commit: str) -> tuple[RepoFile, ...] | None:
        """The files of a commit, if they were listed before."""
        try:
            listed = read_json(self._tree(commit), most=INDEX)
            found = tuple(RepoFile(str(path), int(size), str(content)) for path, size, content in listed)
        except (BadFile, NotFound, TypeError, ValueError):
            return None
        return found

    def keep_tree(self, commit: str, files: tuple[RepoFile, ...]) -> None:
        with _keeping(self.directory):
            make_directory(self._tree(commit).parent)
            write_json(self._tree(commit), [[file.path, file.size, file.content] for file in files])

    def require_room(self, count: int) -> None:
        """Complain before so many bytes are fetched that the disk has no room for them."""
        place = next((each for each in (self.directory, *self.directory.parents) if each.is_dir()), None)
        with contextlib.suppress(OSError):
            free = None if place is None else shutil.disk_usage(place).free
            if free is not None and count > free:
                raise BadValue(
                    f"{count / 1e9:,.1f} GB are to be kept in {self.directory}, and {free / 1e9:,.1f} GB are free on "
                    f"that disk. Choose fewer layers, free some space, or set {SETTING} to another disk's directory."
                )

    def _ref(self, revision: str) -> Path:
        return self.directory / "refs" / quote(revision, safe="")

    def _tree(self, commit: str) -> Path:
        return self.directory / "trees" / f"{commit}.json"


def folder_of(repo: str) -> str:
    """The name of a repository's directory, in our cache as in Hugging Face's."""
    return f"models--{repo.replace('/', '--')}"


@contextlib.contextmanager
def _keeping(directory: Path) -> Iterator[None]:
    """Say what can be done where the cache cannot be written."""
    try:
        yield
    except (BadValue, NotFound) as error:
        raise BadValue(
            f"what was fetched cannot be kept in {directory}: {error} "
            f"{SETTING}=DIR puts the cache elsewhere, {SETTING}=off does without."
        ) from error


@dataclass(frozen=True)
class CachedModel:
    """A model of which something is here: how many bytes of what, of which commits, and in whose cache."""

    repo: str
    commits: tuple[str, ...]
    size: int
    holds: str
    origin: str
    directory: Path


def cached_models() -> list[CachedModel]:
    """All of them, those in Hugging Face's cache first."""
    found = []
    for directory in _directories(huggingface_cache(), "models--*--*"):
        commits = tuple(path.name for path in _directories(directory / "snapshots", "*"))
        size = _size(path for path in directory.glob("blobs/*") if not path.name.endswith(".incomplete"))
        found.append(_model(directory, commits, size, "of files", "the Hugging Face cache"))
    root = cache_root()
    for directory in _directories(root / HUB, "*/models--*--*") if root is not None else ():
        commits = tuple(path.stem for path in directory.glob("trees/*.json"))
        size = _size(path for path in directory.glob("blobs/*/*") if CHUNK_NAME.fullmatch(path.name))
        found.append(_model(directory, commits, size, "of tensors", "Toposcope's cache"))
    return found


def huggingface_cache() -> Path:
    """Where huggingface_hub and transformers keep what they download."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _model(directory: Path, commits: Iterable[str], size: int, what: str, origin: str) -> CachedModel:
    repo = directory.name.removeprefix("models--").replace("--", "/", 1)
    known = tuple(sorted(commit for commit in commits if is_commit(commit)))
    return CachedModel(repo, known, size, f"{what} in {origin}", origin, directory)


def _directories(place: Path, pattern: str) -> list[Path]:
    return sorted(path for path in place.glob(pattern) if path.is_dir())


def _size(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):  # removed by another program meanwhile
            total += path.stat().st_size
    return total
