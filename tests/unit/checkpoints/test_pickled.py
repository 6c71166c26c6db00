"""Pickles looked at before they are loaded: sound ones pass, those that never end are refused."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest

from toposcope.checkpoints.pickled import require_small_keys
from toposcope.core.errors import BadFile

SOUND = [
    {"a": 1, ("b", 2): [3, (4, 5)], "c": {"d": {1, 2}}},
    {"state": {n: {"step": n, "shape": (n, n)} for n in range(500)}},
    [(1, 2)] * 1000,
    tuple(range(1000)),
    "text",
]


def looked_at(path: Path, *pickles: bytes, zipped: bool = False) -> None:
    """As an old file of torch, several pickles in a row, or as an archive."""
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            for number, content in enumerate(pickles):
                archive.writestr(f"{number}/data.pkl", content)
    else:
        path.write_bytes(b"".join(pickles))
    require_small_keys(path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_sound_pickles_pass(tmp_path: Path, protocol: int, zipped: bool) -> None:
    for value in SOUND:
        looked_at(tmp_path / "m.pt", pickle.dumps(value, protocol), zipped=zipped)


@pytest.mark.parametrize("protocol", [1, 2, 4])
@pytest.mark.parametrize("width", [2, 3, 10])
def test_tuples_in_tuples_without_end(tmp_path: Path, protocol: int, width: int) -> None:
    inner: tuple[object, ...] = (1,)
    for _ in range(40):
        inner = (inner,) * width
    content = pickle.dumps([inner], protocol)
    assert len(content) < 10_000
    for pickles, zipped in (((content,), False), ((pickle.dumps(1), content), False), ((content,), True)):
        with pytest.raises(BadFile):
            looked_at(tmp_path / "m.pt", *pickles, zipped=zipped)


def test_damage_is_left_to_the_unpickler(tmp_path: Path) -> None:
    for content in (b"", b"\x80", b"(((", b"h\x07.", pickle.dumps(SOUND[0])[:-9], b"PK\x03\x04 no archive"):
        looked_at(tmp_path / "m.pt", content)
