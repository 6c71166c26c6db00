"""Files are read by position from what was opened: nothing is mapped, nothing is mixed, nothing ends the process."""

from __future__ import annotations

import ast
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from tests.faults.test_code import MODULES, calls
from toposcope.checkpoints.stored_file import StoredFile
from toposcope.core.errors import BadFile, NotFound

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path / "file"


@pytest.mark.parametrize("step", [1, 7, 4096, 100_000])
def test_parts_are_the_whole(path: Path, step: int) -> None:
    file = StoredFile(path)
    assert (
        b"".join(part.tobytes() for part in file.parts(3, 9000, step)) == CONTENT[3:9000] == bytes(file.read(3, 9000))
    )
    assert list(file.parts(5, 5, step)) == []


def test_rows_are_those_asked_for(path: Path) -> None:
    rows = np.array([5, 0, 5, 39])
    found = StoredFile(path).rows(0, len(CONTENT), 40, rows)
    np.testing.assert_array_equal(found, np.frombuffer(CONTENT, np.uint8).reshape(40, -1)[rows])


def test_a_file_cut_short_is_told(path: Path) -> None:
    file = StoredFile(path)
    parts = file.parts(0, len(CONTENT), 1000)
    next(parts)
    os.truncate(path, 1500)
    with pytest.raises(BadFile, match="1,500") as refused:
        list(parts)
    assert "10,240" in str(refused.value)


def test_a_file_that_grows_or_is_written_to_is_told(path: Path) -> None:
    file = StoredFile(path)
    with path.open("ab") as out:
        out.write(b"more")
    with pytest.raises(BadFile, match="written to"):
        file.read(0, 10)


def test_a_replaced_file_is_read_as_it_was(path: Path) -> None:
    file = StoredFile(path)
    other = path.with_name("other")
    other.write_bytes(CONTENT[::-1])
    other.replace(path)
    assert file.read(0, len(CONTENT)).tobytes() == CONTENT
    with pytest.raises(BadFile, match="replaced"):
        file.refuse_replaced()


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, error in (("empty", BadFile), ("pipe", BadFile), (".", BadFile), ("nowhere", NotFound)):
        with pytest.raises(error):
            StoredFile(tmp_path / name)


def test_files_are_closed_by_whoever_forgets(path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limit[1]), limit[1]))
    try:
        for _ in range(300):
            StoredFile(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    file = StoredFile(path)
    file.close()
    file.close()
    with pytest.raises(RuntimeError, match="closed"):
        file.read(0, 1)


# Who may have a file mapped into memory, and why one that is cut short does not end the process by it.
MAPPERS = {
    "checkpoints/torch_storage.py": "torch.load, whose mapped storages are replaced before a byte is touched",
    "refinements/diagonal.py": "a small file of ours, copied at once",
    "lab/load.py": "a small file of ours, copied at once",
}


def maps(name: str, call: ast.Call) -> bool:
    asked = any(word.arg == "mmap" and getattr(word.value, "value", True) is not False for word in call.keywords)
    return asked or name in {"mmap", "memmap", "safe_open", "load_file", "GGUFReader", "from_file"}


def test_files_are_read_and_not_mapped() -> None:
    found = {module for module in MODULES for _, name, call in calls(module) if maps(name, call)}
    assert found <= set(MAPPERS)
