"""Locks of runs: what a killed process may leave of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from toposcope.core.errors import BadFile
from toposcope.runs import lock


@pytest.mark.parametrize(
    "left", [b"", b"\0\0", b"{", b'{"owner', b'{"owner": "machine:1', b'{"owner": "machine:12"}']
)
def test_a_lock_is_taken_again_whatever_of_its_signature_is_left(left: bytes, tmp_path: Path) -> None:
    (tmp_path / lock.NAME).write_bytes(left)
    taken = lock.take(tmp_path, "here:2")
    assert taken is not None
    taken.close()
    assert lock.holder(tmp_path) == "here:2"


@pytest.mark.parametrize("left", [b"a letter", b"{}", b"[1]", b'{"own": "x"}', b'{"owner: "x"}'])
def test_another_file_is_not_signed(left: bytes, tmp_path: Path) -> None:
    (tmp_path / lock.NAME).write_bytes(left)
    with pytest.raises(BadFile):
        lock.take(tmp_path, "here:2")
    assert (tmp_path / lock.NAME).read_bytes() == left
