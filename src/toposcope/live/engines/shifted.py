"""Known bugs of counting: tokens stand elsewhere than in the text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from toposcope.live.engines.situation import Simulation, Situation

SHIFTS = (1, 2, 3, 4, 8, 16)  # by how many padding tokens positions may be off
EARLIEST_CHUNK = 8  # where texts part before, no cache has begun to be used


def left_padding(given: Situation) -> Iterator[Simulation]:
    if not given.takes_positions:
        return
    if any(own.input is not None for own in given.encodings.values()):
        lengths = [own.input.length for own in given.encodings.values() if own.input is not None]
        room = min((length for length in lengths if length is not None), default=2**40) - given.longest
        for shift in SHIFTS:
            if shift <= room:
                yield _moved("left-padding", f"all positions {shift} too far", 0, shift)
    elif _chunk(given):
        for shift in SHIFTS[1:]:
            yield _moved("left-padding", f"from position {given.parts_at} on {shift} too far", _chunk(given), shift)


def cache_offset(given: Situation) -> Iterator[Simulation]:
    at = _chunk(given)
    if not given.takes_positions or not at:
        return
    bug = "cache-offset"
    yield Simulation(
        bug, f"positions begin again after every {at} tokens", positions=lambda count: _count(count) % at
    )

    def again(count: int) -> NDArray[np.int64]:
        return _count(count) - at * (_count(count) >= at)

    yield Simulation(bug, f"positions begin again at {at}", positions=again)
    yield _moved(bug, f"from position {at} on one too far", at, 1)
    yield _moved(bug, f"from position {at} on one too early", at, -1)


def _chunk(given: Situation) -> int:
    """Where a cache may have begun to be used; 0 where texts part before."""
    return given.parts_at if given.parts_at is not None and given.parts_at >= EARLIEST_CHUNK else 0


def _moved(bug: str, variant: str, begin: int, shift: int) -> Simulation:
    return Simulation(bug, variant, positions=lambda count: _count(count) + shift * (_count(count) >= begin))


def _count(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64)
