"""A file on the hub, read like one on the disk: the ranges that are asked for are fetched once, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.hub import http as hub_http
from toposcope.checkpoints.hub.cache import CHUNK, Range, RangeCache
from toposcope.checkpoints.hub.http import CutError, HubClient, MissingRepoError, RepoFile, gave_up, rest
from toposcope.checkpoints.hub.meter import Meter
from toposcope.checkpoints.stored_file import Bytes
from toposcope.core.errors import BadFile, HubError
from toposcope.core.printable import printable

HEAD = 16 << 10  # bytes fetched where a header begins: all of most headers
NEAR = 64 << 10  # ranges nearer than this are fetched as one
PIECE = 64 << 20  # bytes asked for at a time: larger ranges come over several connections at once
CONNECTIONS = 8


class RemoteFile:
    """The bytes of a file on the hub, as `StoredFile` has those of one here."""

    def __init__(
        self, path: Path, repo: str, commit: str, file: RepoFile, client: HubClient, cache: RangeCache, meter: Meter
    ) -> None:
        self.path = path
        self.size = file.size
        self._repo, self._commit, self._file = repo, commit, file
        self._client = client
        self._cache = cache
        self._meter = meter
        if file.size == 0:
            raise BadFile(f"{printable(path)} is empty (0 bytes), and a checkpoint was expected.")

    def read(self, start: int, end: int) -> Bytes:
        """These bytes, in memory of their own."""
        found = np.empty(end - start, dtype=np.uint8)
        self._fill(found, start)
        return found

    def parts(self, start: int, end: int, step: int) -> Iterator[Bytes]:
        """These bytes, so many at a time; what is yielded holds until the next."""
        self.fetch([(start, end)])
        buffer = np.empty(min(step, end - start), dtype=np.uint8)
        for at in range(start, end, step):
            part = buffer[: min(step, end - at)]
            self._fill(part, at)
            yield part

    def rows(self, start: int, end: int, count: int, rows: NDArray[np.intp]) -> Bytes:
        """Some of `count` equal rows that fill these bytes; of the others only what lies between is fetched."""
        width = (end - start) // max(count, 1)
        found = np.empty((len(rows), width), dtype=np.uint8)
        places = [start + row * width for row in rows.tolist()]
        self.fetch([(place, place + width) for place in places])
        for target, place in zip(found, places, strict=True):
            self._fill(target, place)
        return found

    def refuse_change(self) -> None:
        """Nothing to refuse: every answer was compared with the file that was begun."""

    def close(self) -> None:
        """Nothing is held open."""

    def missing(self, ranges: Iterable[Range]) -> list[Range]:
        """What is still to be fetched for these ranges; near ones are joined where nothing between them is here."""
        found: list[Range] = []
        for start, end in sorted(gap for wanted in ranges for gap in self._cache.missing(*wanted)):
            last = found[-1][1] if found else -NEAR
            if start - last < NEAR and (start <= last or self._cache.missing(last, start) == [(last, start)]):
                found[-1] = (found[-1][0], max(end, last))
            else:
                found.append((start, end))
        return found

    def fetch(self, ranges: Iterable[Range]) -> None:
        """Have these ranges here, over several connections where there are several."""
        asked = list(ranges)
        if not self.missing(asked):
            return
        self._cache.refresh()  # another process may have been quicker
        pieces = [piece for gap in self.missing(asked) for piece in _pieces(gap)]
        with self._meter.busy():
            at_once([partial(self._receive, *piece) for piece in pieces])

    # ------------------------------------------------------------- inside
    def _fill(self, buffer: Bytes, start: int) -> None:
        end = start + len(buffer)
        if end > self.size:
            raise BadFile(f"{printable(self.path)} has {self.size:,} bytes, and byte {end:,} was asked for.")
        for _ in range(3):
            self.fetch([(start, max(end, min(HEAD, self.size)) if start == 0 else end)])
            if self._cache.fill(buffer, start):
                return
        raise BadFile(
            f"what is kept of {printable(self.path)} changes while it is read: another program writes to the cache. "
            "Stop it, or set TOPOSCOPE_CACHE to a directory of its own."
        )

    def _receive(self, start: int, end: int) -> None:
        """Fetch a range and keep it, also what came of it before a connection was cut."""
        at, idle = start, 0
        while at < end:
            begun = at
            buffer = bytearray()
            try:
                for piece in self._client.stream(self._repo, self._commit, self._file, at, end):
                    buffer += piece
                    self._meter(len(piece))
                    while len(buffer) >= CHUNK:
                        at = self._keep(at, buffer, CHUNK)
            except CutError as cut:
                at = self._keep(at, buffer, len(buffer))
                idle = 0 if at > begun else idle + 1
                if idle >= hub_http.PATIENCE:
                    raise gave_up(f"fetching {printable(self.path)}", cut) from cut
                rest(cut, idle - 1 if idle else -4)  # hardly at all where something arrived
            except MissingRepoError as error:
                raise HubError(
                    f"{self._client.endpoint} lists {printable(self._file.path)} of {self._repo} and keeps it. "
                    "Look there: a token may be needed ('hf auth login')."
                ) from error
            except BaseException:  # stopped by the user: what has arrived is worth keeping
                self._keep(at, buffer, len(buffer))
                raise
            else:
                at = self._keep(at, buffer, len(buffer))

    def _keep(self, at: int, buffer: bytearray, count: int) -> int:
        if count:
            self._cache.add(at, bytes(memoryview(buffer)[:count]))
            del buffer[:count]
        return at + count


def at_once(work: Sequence[Callable[[], None]]) -> None:
    """Do several pieces of work over several connections; the first that fails ends those not yet begun."""
    if len(work) == 1:
        work[0]()
    elif work:
        with ThreadPoolExecutor(min(CONNECTIONS, len(work))) as pool:
            waiting = [pool.submit(each) for each in work]
            try:
                for each in waiting:
                    each.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


def _pieces(gap: Range) -> Sequence[Range]:
    return [(at, min(at + PIECE, gap[1])) for at in range(gap[0], gap[1], PIECE)]
