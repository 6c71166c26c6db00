"""Files are written as a whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from toposcope.core.errors import BadValue, NotFound
from toposcope.core.files import make_directory, present, write_bytes, write_json, write_text


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_writes_what_it_is_given(tmp_path: Path) -> None:
    assert write_bytes(tmp_path / "b", b"\0\xff").read_bytes() == b"\0\xff"
    assert write_text(str(tmp_path / "t"), "Grüße\n").read_bytes() == "Grüße\n".encode()
    value = {"a": [1, 2.5, None, "ß"]}
    assert json.loads(write_json(tmp_path / "j", value).read_text(encoding="utf-8")) == value
    assert names_in(tmp_path) == ["b", "j", "t"]


def test_the_mode_is_the_usual_one_and_is_kept(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    new = write_bytes(tmp_path / "new", b"1")
    assert stat.S_IMODE(new.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    new.chmod(0o600)
    assert stat.S_IMODE(write_bytes(new, b"2").stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "r.json", "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadValue, match="full") as refused:
        write_text(path, "new")
    assert "r.json" in str(refused.value)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["r.json"]


def test_an_interruption_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "r.json", "old")

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["r.json"]


def test_what_is_no_json_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "r.json", {"a": float("nan")})
    assert names_in(tmp_path) == []


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere "):
        write_text(tmp_path / "nowhere" / "r.json", "x")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EDQUOT, "full"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_refuses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadValue, match=says):
        write_text(tmp_path / "r.json", "x")


def test_a_protected_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "r.json", "old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # its mode would not stop root
    with pytest.raises(BadValue, match="permission denied"):
        write_text(path, "new")
    assert path.read_text() == "old"


@pytest.mark.parametrize("name", ["directory", "file/inside", "x" * 300, "a\0b"])
def test_names_that_cannot_be_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(BadValue, match="cannot write"):
        write_text(tmp_path / name, "x")


def test_a_long_name_that_the_system_allows_is_allowed(tmp_path: Path) -> None:
    assert write_text(tmp_path / ("x" * 250), "x").read_text() == "x"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = write_text(tmp_path / "target", "old")
    (tmp_path / "link").symlink_to(target)
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_bytes()))
    reader.start()
    write_text(pipe, "hello")
    reader.join(timeout=10)
    assert seen == [b"hello"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_readers_see_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "r", b"a" * 100_000)
    stop = threading.Event()
    seen: set[tuple[int, bytes]] = set()

    def read() -> None:
        while not stop.is_set():
            content = path.read_bytes()
            seen.add((len(content), content[:1] + content[-1:]))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(30):
        write_bytes(path, (b"b" if number % 2 else b"a") * 100_000)
    stop.set()
    reader.join()
    assert seen <= {(100_000, b"aa"), (100_000, b"bb")}


def test_a_directory_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    made = make_directory(tmp_path / "a" / "b")
    assert make_directory(made).is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="file/inside"):
        make_directory(tmp_path / "file" / "inside")


def test_nothing_is_present_at_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    assert present(tmp_path)
    for name in ("a" * 5000, "a\0b", "b/" * 3000, str(tmp_path / "missing")):
        assert not present(name)
