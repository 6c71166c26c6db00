"""The door: what it opens, what it refuses, and limits that depend on the kind of file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from toposcope.core.errors import BadFile, NotFound
from toposcope.core.untrusted import (
    boundary,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    require_inside,
    require_plain,
)


def link(path: Path, to: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("1")
    return tmp_path / "secret"


REFUSED: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a loop": lambda path: path.symlink_to(path),
    "too large": lambda path: path.write_bytes(bytes(9)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_opened(tmp_path: Path, what: str) -> None:
    REFUSED[what](tmp_path / "it")
    with pytest.raises(BadFile):
        read_bytes(tmp_path / "it", most=8)
    with pytest.raises(BadFile):
        read_bytes(tmp_path / "it", most=8, inside=tmp_path)


def test_what_is_not_there(tmp_path: Path) -> None:
    for name in ("gone", "gone/deeper"):
        with pytest.raises(NotFound):
            open_file(tmp_path / name)
    with pytest.raises(BadFile):
        open_file(tmp_path / "a\0b")


def test_links_that_the_user_named_and_those_found(tmp_path: Path, secret: Path) -> None:
    inside = tmp_path / "place"
    out, near = link(inside / "out", secret), link(inside / "near", Path("real"))
    (inside / "real").write_text("2")
    assert read_bytes(out, most=8) == b"1", "a path that the user names may be a link"
    assert read_bytes(near, most=8, inside=inside) == b"2"
    for path, links in ((out, True), (out, False), (near, False), (link(inside / "loop", inside / "loop"), True)):
        with pytest.raises(BadFile):
            read_bytes(path, most=8, inside=inside, links=links)
    place = link(tmp_path / "other", inside)
    assert read_bytes(place / "real", most=8, inside=place, links=False) == b"2", "the directory itself may be one"
    deep = link(inside / "deep", tmp_path)
    with pytest.raises(BadFile):
        require_inside(deep / "secret", inside)


def test_a_snapshot_may_link_into_its_own_cache(tmp_path: Path, secret: Path) -> None:
    model = tmp_path / "models--org--name"
    snapshot = model / "snapshots" / "1f3a"
    (model / "blobs").mkdir(parents=True)
    (model / "blobs" / "77").write_text("3")
    link(snapshot / "config.json", Path("../../blobs/77"))
    assert read_json(snapshot / "config.json", most=8, inside=snapshot) == 3
    assert boundary(snapshot) == boundary(snapshot / "text_encoder") == model.resolve()
    with pytest.raises(BadFile):
        open_file(link(snapshot / "other.json", secret), inside=snapshot)


def test_json_has_limits() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": [1, 2.5e3, Infinity]}', "it")["a"][1] == 2500
    for text in ("{", "[" * 200_000, "9" * 5000, "[" + "1," * 9 + "1]", b"\xff"):
        with pytest.raises(BadFile):
            parse_json(text, "it", nodes=9)
    for text in ("NaN", "[Infinity]", "-1e999", "[1E+400]", '{"a": 1.5e999 }', "1" + "0" * 400, f"[{'7' * 500}]"):
        with pytest.raises(BadFile):
            parse_json(text, "it", finite=True)
    assert parse_json(f"[{2**1000}, 1.7e308, -0.5]", "it", finite=True) == [2**1000, 1.7e308, -0.5]


def test_where_files_are_written_nothing_leads_elsewhere(tmp_path: Path, secret: Path) -> None:
    place = tmp_path / "place"
    require_plain(place)
    (place / "model").mkdir(parents=True)
    (place / "model" / "config.json").touch()
    require_plain(place)
    bad = link(place / "model" / "weights", secret)
    for names in (None, ("model",)):
        with pytest.raises(BadFile):
            require_plain(place, names)
    require_plain(place, ("result.json",))
    bad.unlink()
    os.mkfifo(place / "pipe")
    with pytest.raises(BadFile):
        require_plain(place)
    deep = tmp_path / "deep" / "/".join("x" * 30)
    deep.mkdir(parents=True)
    with pytest.raises(BadFile):
        require_plain(tmp_path / "deep")
