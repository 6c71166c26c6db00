"""How long work tells of itself: one callback for every verb.

    def progress(what: str, done: int, total: int) -> None: ...

`what` may end in a detail that changes, after a colon: "rope seed 0: 43.1%" is the work "rope seed 0".
It is called with done = 0 when a part of the work begins, and after each of its steps. The command line draws a bar
from it, a notebook may print it, and `stopped` work is work whose callback raised.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
FETCHING = "fetching"  # work that begins with this word is counted in bytes


def duration_range(low: float, high: float) -> str:
    """A duration that is a guess, with a digit or two: '20 to 50 s', '2 to 5 min', '50 s to 2 min'."""
    least, most = _coarse(low), _coarse(high)
    if least == most:
        return most
    return f"{least.partition(' ')[0] if least.split()[1] == most.split()[1] else least} to {most}"


def _coarse(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s" if seconds < 10 else f"{round(seconds, -1):.0f} s"


def silent(what: str, done: int, total: int) -> None:
    """The progress of nobody watching."""


def steps(progress: Progress | None, what: str, total: int) -> Callable[[], None]:
    """Begin a part of the work with so many steps; call what comes back after each of them."""
    tell, done = progress or silent, 0
    tell(what, 0, total)

    def step() -> None:
        nonlocal done
        done += 1
        tell(what, done, total)

    return step
