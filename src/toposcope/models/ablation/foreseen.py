"""How long a step of an ablation still takes, told from what of it is done, and corrected on the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from toposcope.core.progress import duration_range

PATIENCE = 5.0  # seconds: what is over sooner needs no announcement, and so long it may take until there is one
LEAST, MOST = 0.8, 1.6  # of what the pace so far says
_log = logging.getLogger("toposcope")


class TimeLeft:
    """Says how long the rest of one step takes, of which so much `work` is left; `done` returns all work done so far.

    Only what this step has done since it began tells its pace: another step's work may be of another kind. The first
    word comes when the work of `first` is done (after `PATIENCE`, when any is); a later one, where the pace has left
    the range that was told, and no sooner than after twice the time. `step` stands before each.
    """

    def __init__(self, work: float, first: float, done: Callable[[], float], step: str = "") -> None:
        self.work, self._first, self._all, self._before, self._step = work, first, done, done(), step
        self._began, self._told_at = time.perf_counter(), 0.0
        self._range: tuple[float, float] | None = None  # of all the time, as told

    def expect(self, left: float) -> None:
        """Correct how much work is left."""
        self.work = self._all() - self._before + left

    def look(self) -> None:
        """Compare with the clock; called after each part of the step."""
        done, spent = self._all() - self._before, time.perf_counter() - self._began
        if not 0 < done < self.work or (self._range is None and done < self._first and spent < PATIENCE):
            return
        left = spent * (self.work - done) / done
        low, high = self._range or (0.0, 0.0)
        if low <= spent + left <= high or spent < 2 * self._told_at or left <= PATIENCE:
            return
        about = "about" if self._range is None else "now about"
        words = f"{about} {duration_range(LEAST * left, MOST * left)} left."
        _log.info("%s", f"{self._step}: {words}" if self._step else words[0].upper() + words[1:])
        self._range, self._told_at = (spent + LEAST * left, spent + MOST * left), spent
