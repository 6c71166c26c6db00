"""From what the user typed to an open checkpoint, or to a sentence that says what to do."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.unit.checkpoints.making import gguf_bytes, gguf_tensor, one_float, written
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.lone_config import lone_configuration
from toposcope.core.errors import BadConfig, BadFile, NotFound, ToposcopeError

SAFETENSORS = one_float()
GGUF = gguf_bytes((), [gguf_tensor("w", [2, 2])], np.arange(4, dtype="<f4").tobytes())


def torch_bytes(zipped: bool = True) -> bytes:
    torch = pytest.importorskip("torch")
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(4.0).reshape(2, 2)}, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def layout(directory: Path, *names: str) -> Path:
    for name in names:
        if name.endswith(".safetensors"):
            written(directory / name, SAFETENSORS)
        elif name.endswith(".gguf"):
            written(directory / name, GGUF)
        elif name.endswith((".bin", ".pt", ".pth", ".ckpt")):
            written(directory / name, torch_bytes())
        else:
            (directory / name).write_text("{}")
    return directory


@pytest.mark.parametrize(
    ("names", "chosen", "form"),
    [
        (["model.safetensors", "config.json", "tokenizer.json"], "model.safetensors", "safetensors"),
        (["model.safetensors", "pytorch_model.bin", "m.gguf"], "model.safetensors", "safetensors"),
        (["weights.safetensors", "pytorch_model.bin"], "weights.safetensors", "safetensors"),
        (["pytorch_model.bin", "training_args.bin", "scheduler.pt", "optimizer.pt"], "pytorch_model.bin", "torch"),
        (["pytorch_model.bin", "other.bin"], "pytorch_model.bin", "torch"),
        (["model.pt", "rng_state.pth"], "model.pt", "torch"),
        (["weights.ckpt"], "weights.ckpt", "torch"),
        (["m.Q4_1.gguf", "README.md"], "m.Q4_1.gguf", "gguf"),
    ],
)
def test_chooses_the_weights_of_a_directory(tmp_path: Path, names: list[str], chosen: str, form: str) -> None:
    opened = open_checkpoint(str(layout(tmp_path, *names)))
    assert opened.source.path == tmp_path
    assert opened.weights == tmp_path / chosen
    assert opened.source.format == form
    np.testing.assert_array_equal(opened.source.read("w"), [[0, 1], [2, 3]])
    assert (opened.config_path is not None) == ("config.json" in names)


def test_says_what_it_left_aside(tmp_path: Path) -> None:
    opened = open_checkpoint(layout(tmp_path, "model.safetensors", "pytorch_model.bin", "m.gguf", "optimizer.bin"))
    (note,) = opened.notes
    for name in ("model.safetensors", "m.gguf", "pytorch_model.bin"):
        assert name in note
    assert "optimizer" not in note


@pytest.mark.parametrize("names", [["a.gguf", "b.gguf"], ["a.safetensors", "b.safetensors"], ["a.pt", "b.pth"]])
def test_several_equal_choices_are_listed(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(NotFound, match=", ".join(names)):
        open_checkpoint(layout(tmp_path, *names))


@pytest.mark.parametrize("name", ["m.safetensors", "m.gguf", "m.pt", "m.pth", "m.bin", "m.ckpt", "M.GGUF"])
def test_opens_single_files_with_the_configuration_beside_them(tmp_path: Path, name: str) -> None:
    layout(tmp_path, name.lower())
    (tmp_path / name.lower()).rename(tmp_path / name)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "größe": 1}', encoding="utf-8")
    opened = open_checkpoint(tmp_path / name)
    assert opened.config == {"model_type": "llama", "größe": 1}
    assert opened.config_path == tmp_path / "config.json"
    assert opened.source.path == opened.weights == tmp_path / name
    np.testing.assert_array_equal(opened.source.read("w"), [[0, 1], [2, 3]])


def test_a_file_without_a_telling_name_is_known_by_its_content(tmp_path: Path) -> None:
    """The Hugging Face cache stores files under their hashes."""
    for content, form in ((SAFETENSORS, "safetensors"), (GGUF, "gguf"), (torch_bytes(), "torch")):
        assert open_checkpoint(written(tmp_path / "0a1b2c", content)).source.format == form


def archive(mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        tar.addfile(tarfile.TarInfo("model.safetensors"))
    return buffer.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2\n"
MISLABELLED = {
    "gguf as safetensors": ("model.safetensors", GGUF, "GGUF"),
    "gguf as torch": ("model.pt", GGUF, "GGUF"),
    "safetensors as gguf": ("model.gguf", SAFETENSORS, "safetensors"),
    "safetensors as bin": ("pytorch_model.bin", SAFETENSORS, r"safetensors.*Rename"),
    "html": ("model.safetensors", b"\n<!DOCTYPE html><html><body>Login", "web page"),
    "html as gguf": ("model.gguf", b"<html><head>404", "web page"),
    "git lfs": ("model.safetensors", LFS, "git lfs pull"),
    "git lfs as bin": ("pytorch_model.bin", LFS, "LFS"),
    "gzip": ("model.gguf", gzip.compress(GGUF), "gzip"),
    "tar": ("model.bin", archive("w"), "tar archive"),
    "json": ("model.safetensors", b'{"error": "not authorised"}', "JSON"),
    "hdf5": ("model.bin", b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5"),
    "old ggml": ("model.bin", b"tjgg" + bytes(64), "old llama.cpp"),
    "noise as torch": ("model.pt", b"\x07" * 64, "zip.*pickle"),
    "noise without a name": ("model", b"\x07" * 64, "no checkpoint"),
    "text without a name": ("notes.txt", b"hello world, this is text", "no checkpoint"),
    "empty": ("model.safetensors", b"", "empty"),
    "empty gguf": ("model.gguf", b"", "empty"),
    "empty torch": ("model.pt", b"", "empty"),
}


@pytest.mark.parametrize(("name", "content", "says"), MISLABELLED.values(), ids=MISLABELLED)
def test_a_mislabelled_file_is_told_what_it_is(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    with pytest.raises(BadFile, match=says) as refused:
        open_checkpoint(written(tmp_path / name, content))
    assert name in str(refused.value)


def test_safetensors_whose_length_looks_like_a_pickle(tmp_path: Path) -> None:
    """A header of 0x0280 bytes begins with the two bytes of a pickle."""
    header = json.dumps({"w": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}).encode().ljust(0x280)
    content = len(header).to_bytes(8, "little") + header + b"\x00\x45"
    assert content[:2] == b"\x80\x02"
    assert open_checkpoint(written(tmp_path / "m.safetensors", content)).source.read("w")[0] == 5


BAD_CONFIGS = {
    "not JSON": (b'{\n  "a": 1,\n  oops\n}', "line 3, column 3"),
    "an array": (b"[1, 2]", "list"),
    "a text": (b'"llama"', "str"),
    "not UTF-8": (b'{"a": "\xff"}', "UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "UTF-8"),
    "nested without end": (b'{"a":' + b"[" * 200_000, "nested"),
    "a number of many digits": (b'{"a": ' + b"9" * 10_000 + b"}", "JSON"),
    "huge": (b'{"a": "' + b"x" * 17_000_000 + b'"}', "17,000,009 bytes"),
}


@pytest.mark.parametrize(("content", "says"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_bad_configuration_is_pointed_at(tmp_path: Path, content: bytes, says: str) -> None:
    layout(tmp_path, "model.safetensors")
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadConfig, match=says) as refused:
        open_checkpoint(tmp_path)
    assert "config.json" in str(refused.value)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    layout(tmp_path, "model.safetensors")
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf{}")
    assert open_checkpoint(tmp_path).config == {}


@pytest.mark.parametrize("names", [[], ["config.json", "tokenizer.json"], ["training_args.bin"]])
def test_a_directory_without_weights(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(NotFound, match=r"model\.safetensors") as refused:
        open_checkpoint(layout(tmp_path, *names))
    assert (", ".join(sorted(names)) or "no files") in str(refused.value)


def test_an_adapter_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="adapter"):
        open_checkpoint(layout(tmp_path, "adapter_config.json", "adapter_model.safetensors"))


def test_a_misspelt_file_is_found_among_its_neighbours(tmp_path: Path) -> None:
    layout(tmp_path, "model.safetensors")
    with pytest.raises(NotFound, match=r"'model\.safetensors'"):
        open_checkpoint(tmp_path / "modle.safetensors")


def test_a_misspelt_name_is_found_among_the_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match="'smollm2'"):
        open_checkpoint("smolm2")
    with pytest.raises(NotFound, match="minilm"):
        open_checkpoint("qqqqqqqq")


@pytest.mark.parametrize("target", ["no/such/directory/m.gguf", "a\0b", "x" * 5000, ""])
def test_impossible_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound):
        open_checkpoint(target)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(NotFound, match=r"model\.safetensors"):
        open_checkpoint(tmp_path / "model.gguf")
    with pytest.raises(BadFile, match="device"):
        open_checkpoint(tmp_path / "pipe.gguf")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(BadFile, match="device"):
            open_checkpoint(tmp_path / "s")


def test_a_broken_link_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(NotFound):
        open_checkpoint(tmp_path / "model.safetensors")
    with pytest.raises(NotFound):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf", "model.pt"])
def test_a_forbidden_file_is_an_error_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    layout(tmp_path, name)

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # The mode of a file does not stop root, under whom tests often run.
    monkeypatch.setattr(Path, "open", forbidden)
    monkeypatch.setattr("toposcope.core.untrusted.os.open", forbidden)
    with pytest.raises(BadFile, match="permission denied"):
        open_checkpoint(tmp_path / name)


def test_every_message_is_short_and_on_one_line(tmp_path: Path) -> None:
    for number, (name, content, _) in enumerate(MISLABELLED.values()):
        directory = tmp_path / str(number)
        directory.mkdir()
        with pytest.raises(ToposcopeError) as refused:
            open_checkpoint(written(directory / name, content))
        message = str(refused.value).replace(str(tmp_path), "")
        assert "\n" not in message
        assert len(message) < 300
        assert message.endswith((".", ")."))


def test_an_unknown_name_is_answered_with_models_not_with_the_files_that_lie_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").write_text("")
    (tmp_path / "my-checkpoint").mkdir()
    with pytest.raises(NotFound) as caught:
        open_checkpoint("zzz")
    assert "smollm2" in str(caught.value)
    assert "Makefile" not in str(caught.value)
    with pytest.raises(NotFound, match="my-checkpoint"):
        open_checkpoint("my-checkpont")


def test_the_models_below_a_directory_without_weights_are_named(tmp_path: Path) -> None:
    for place, name in (("b", "model.safetensors"), ("c", "notes.txt")):
        (tmp_path / "in" / place).mkdir(parents=True)
        written(tmp_path / "in" / place / name, SAFETENSORS)
    with pytest.raises(NotFound) as told:
        open_checkpoint(tmp_path / "in")
    assert str(tmp_path / "in" / "b") in str(told.value)
    assert str(tmp_path / "in" / "c") not in str(told.value)


def test_a_result_is_no_model(tmp_path: Path) -> None:
    place = written(tmp_path / "scan.json", json.dumps({"schema": "toposcope/scan/2"}, indent=2).encode())
    for read in (open_checkpoint, lone_configuration):
        with pytest.raises(BadFile, match="toposcope report"):
            read(place)
