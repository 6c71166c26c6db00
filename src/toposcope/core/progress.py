"""How long work tells of itself: one callback for every verb.

    def progress(what: str, done: int, total: int) -> None: ...

`what` may end in a detail that changes, after a colon: "rope seed 0: 43.1 %" is the work "rope seed 0".
It is called with done = 0 when a part of the work begins, and after each of its steps. The command line draws a bar
from it, a notebook may print it, and `stopped` work is work whose callback raised.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
FETCHING = "fetching"  # work that begins with this word is counted in bytes


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
