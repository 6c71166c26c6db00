"""Pickles looked at before they are loaded: sound ones pass, those that never end are refused."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest

from toposcope.checkpoints.pickled import require_small_keys
from toposcope.errors import BadFile

SOUND = [
    {"a": 1, ("b", 2): [3, (4, 5)], "c": {"d": {1, 2}}},
    {"state": {n: {"step": n, "shape": (n, n)} for n in range(500)}},
    [(1, 2)] * 1000,
    tuple(range(1000)),
    "text",
]


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_sound_pickles_pass(protocol: int) -> None:
    for value in SOUND:
        require_small_keys(io.BytesIO(pickle.dumps(value, protocol)), Path("m.pt"))


@pytest.mark.parametrize("protocol", [1, 2, 4])
@pytest.mark.parametrize("width", [2, 3, 10])
def test_tuples_in_tuples_without_end(protocol: int, width: int) -> None:
    inner: tuple[object, ...] = (1,)
    for _ in range(40):
        inner = (inner,) * width
    content = pickle.dumps([inner], protocol)
    assert len(content) < 10_000
    with pytest.raises(BadFile):
        require_small_keys(io.BytesIO(content), Path("m.pt"))
    with pytest.raises(BadFile):
        require_small_keys(io.BytesIO(pickle.dumps(1) + content), Path("m.pt"), pickles=2)


def test_damage_is_left_to_the_unpickler() -> None:
    for content in (b"", b"\x80", b"(((", b"h\x07.", pickle.dumps(SOUND[0])[:-9]):
        require_small_keys(io.BytesIO(content), Path("m.pt"))
