"""How long an ablation still takes, told from what of it has been measured in this run, and corrected on the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from toposcope.core.progress import duration_range

PATIENCE = 5.0  # seconds: what is over sooner needs no announcement, and so long it may take until there is one
LEAST, MOST = 0.8, 1.6  # of what the pace so far says
_log = logging.getLogger("toposcope")


class TimeLeft:
    """Says how long the rest of so much `work` takes; `done` returns how much of it has been done.

    The first word comes when the work of `first` is done (or after `PATIENCE`); a later one, where the pace has left
    the range that was told, and no sooner than after twice the time.
    """

    def __init__(self, work: float, first: float, done: Callable[[], float]) -> None:
        self.work, self.first, self._done = work, first, done
        self._began, self._told_at = time.perf_counter(), 0.0
        self._range: tuple[float, float] | None = None  # of all the time, as told

    def look(self) -> None:
        """Compare with the clock; called after each step."""
        done, spent = self._done(), time.perf_counter() - self._began
        if not 0 < done < self.work or (self._range is None and done < self.first and spent < PATIENCE):
            return
        left = spent * (self.work - done) / done
        low, high = self._range or (0.0, 0.0)
        if low <= spent + left <= high or spent < 2 * self._told_at or left <= PATIENCE:
            return
        _log.info(
            "%s %s left.", "About" if self._range is None else "Now about", duration_range(LEAST * left, MOST * left)
        )
        self._range, self._told_at = (spent + LEAST * left, spent + MOST * left), spent
