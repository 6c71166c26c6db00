"""The copy of a GGUF file: kept as a whole or not at all, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from toposcope.models import gguf_cache

pytest.importorskip("transformers", reason="the copy is named after its version: pip install transformers")


def save(to: Path) -> None:
    (to / "model.safetensors").write_bytes(b"weights")
    (to / "config.json").write_text("{}")


def broken(to: Path) -> None:
    (to / "config.json").write_text("{}")
    raise OSError(28, "No space left on device")


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(gguf_cache.SETTING, str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF one")
    return file


def test_a_copy_is_found_again_and_another_file_has_another(gguf: Path) -> None:
    directory = gguf_cache.directory_for(gguf)
    assert directory is not None
    assert gguf_cache.find(directory) is None
    gguf_cache.keep(directory, save)
    assert gguf_cache.find(gguf_cache.directory_for(gguf)) == directory
    gguf.write_bytes(b"GGUF two")
    assert gguf_cache.find(gguf_cache.directory_for(gguf)) is None


def test_what_fails_leaves_nothing(gguf: Path) -> None:
    directory = gguf_cache.directory_for(gguf)
    assert directory is not None
    gguf_cache.keep(directory, broken)
    assert gguf_cache.find(directory) is None
    assert list(directory.parent.iterdir()) == []


def test_the_second_writer_yields(gguf: Path) -> None:
    directory = gguf_cache.directory_for(gguf)
    assert directory is not None
    gguf_cache.keep(directory, save)
    gguf_cache.keep(directory, save)
    assert [entry.name for entry in directory.parent.iterdir()] == [directory.name]


def test_a_place_that_cannot_be_written_is_no_error(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = gguf.parent / "a file"
    blocked.write_text("not a directory")
    monkeypatch.setenv(gguf_cache.SETTING, str(blocked))
    directory = gguf_cache.directory_for(gguf)
    assert directory is not None
    gguf_cache.keep(directory, save)
    assert gguf_cache.find(directory) is None


def test_it_can_be_switched_off(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gguf_cache.SETTING, "off")
    assert gguf_cache.directory_for(gguf) is None
    assert gguf_cache.find(None) is None


def test_a_header_is_parsed_once_while_a_file_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf as package

    from toposcope.models.load import _read_once

    parsed = []
    monkeypatch.setattr(package, "GGUFReader", parsed.append)
    with _read_once():
        for name in ("one", "one", "two"):
            package.GGUFReader(name)
    package.GGUFReader("one")
    assert parsed == ["one", "two", "one"]
