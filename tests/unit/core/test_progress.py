"""One callback for all long work."""

from __future__ import annotations

import pytest

from toposcope.core.progress import steps


def test_steps_are_told_from_the_beginning() -> None:
    told: list[tuple[str, int, int]] = []
    step = steps(lambda *each: told.append(each), "layers", 2)
    assert told == [("layers", 0, 2)]
    step()
    step()
    assert told[1:] == [("layers", 1, 2), ("layers", 2, 2)]


def test_nobody_need_watch() -> None:
    steps(None, "layers", 1)()


def test_a_callback_can_stop_the_work() -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    step = steps(stop, "layers", 2)
    with pytest.raises(KeyboardInterrupt):
        step()
