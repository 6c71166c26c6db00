"""What a call foresees of its memory, beside what it takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest


def foreseen(monkeypatch: pytest.MonkeyPatch, module: str, call: Callable[[], object]) -> tuple[float, int]:
    """The most bytes that a module asks about while `call` runs, and the most that are in use at once."""
    asked = [0.0]
    monkeypatch.setattr(f"{module}.require_memory", lambda needed, what, advice: asked.append(needed))
    call()  # what is made once for all calls is not theirs
    tracemalloc.start()
    try:
        call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return max(asked), peak
