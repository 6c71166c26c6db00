"""How much is fetched from the hub: foretold, told while it arrives, and how fast it came."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from toposcope.core.progress import FETCHING, Progress, silent

log = logging.getLogger("toposcope.hub")
WORTH_TELLING = 1_000_000_000  # bytes: more is announced before it is fetched
USUAL_SPEED = 12_500_000  # bytes a second, 100 Mbit/s: where nothing was measured yet
MEASURED = 4_000_000  # bytes after which the speed is known
OFTEN = 0.1  # seconds between two words of progress


class Meter:
    """Counts what arrives for one model, whichever of its files and connections it comes by."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._progress: Progress = silent
        self._total = self._done = 0
        self._received, self._seconds = 0, 0.0
        self._busy, self._since, self._told = 0, 0.0, 0.0

    def expect(self, count: int, progress: Progress | None) -> None:
        """So many bytes are about to be fetched."""
        if count > WORTH_TELLING:
            log.info(
                "%s: fetching %s. Fewer layers need less: --layers 0-3, or for a scan --layers sample:8. "
                "What has arrived is kept.",
                self._name,
                self.foretold(count),
            )
        with self._lock:
            self._progress = progress or silent
            self._total, self._done = count, 0
        if count:
            self._progress(f"{FETCHING} {self._name}", 0, count)

    def __call__(self, count: int) -> None:
        """So many bytes have arrived."""
        with self._lock:
            self._received += count
            self._done += count
            now = time.monotonic()
            due = now - self._told > OFTEN or self._done == self._total
            self._told = now if due else self._told
            done, total, tell = self._done, max(self._total, self._done), self._progress
        if due and self._total:
            tell(f"{FETCHING} {self._name}", done, total)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While something is being fetched."""
        with self._lock:
            self._since = time.monotonic() if self._busy == 0 else self._since
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                if self._busy == 0:
                    self._seconds += time.monotonic() - self._since

    def foretold(self, count: int) -> str:
        """So many bytes, and how long they will take where that is worth a word."""
        if self._received > MEASURED and self._seconds > 0:
            speed, words = self._received / self._seconds, "as fast as until now"
        else:
            speed, words = USUAL_SPEED, "at 100 Mbit/s"
        minutes = count / speed / 60
        length = f"{minutes:,.0f} minutes" if minutes < 90 else f"{minutes / 60:,.1f} hours"
        return f"{show_bytes(count)} (about {length} {words})" if minutes >= 1 else show_bytes(count)


def show_bytes(count: int) -> str:
    """A number of bytes as people say it."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
