"""Files made to harm: bombs are refused before they are unpacked, and no file leads out of its directory."""

from __future__ import annotations

import io
import json
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.unit.checkpoints.making import gguf_bytes, gguf_pair, gguf_string, gguf_tensor, safetensors_bytes
from toposcope.checkpoints.gguf_file import GgufFile
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.core.arrays import read_npy, read_npz
from toposcope.core.errors import BadFile, BadValue, ToposcopeError
from toposcope.core.ranges import parse_heads
from toposcope.runs.directory import Job
from toposcope.runs.store import Store

HUGE = 2**40


def npy(shape: tuple[int, ...], data: bytes = b"", kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def npz(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


BOMBS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "npy of a terabyte": (npy((HUGE,)), lambda path: read_npy(path, "W")),
    "npy of no bytes each": (npy((HUGE,), kind="<U0"), lambda path: read_npy(path, "W")),
    "npy of negative size": (npy((-1, -8), bytes(64)), lambda path: read_npy(path, "W")),
    "npy of objects": (npy((1,), b"x", "|O"), lambda path: read_npy(path, "W")),
    "npz of a terabyte": (npz({"a.npy": npy((HUGE,))}), lambda path: read_npz(path, "a flow")),
    "safetensors of a terabyte": (
        safetensors_bytes({"w": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4 * HUGE]}}),
        SafetensorsFile,
    ),
    "safetensors with a header of a terabyte": (safetensors_bytes(b"{}", length=HUGE), SafetensorsFile),
    "safetensors whose shape overflows": (
        safetensors_bytes({"w": {"dtype": "F32", "shape": [2**32, 2**32, 2**32], "data_offsets": [0, 0]}}),
        SafetensorsFile,
    ),
    "gguf with a text of a terabyte": (
        gguf_bytes([gguf_pair("a", 8, struct.pack("<Q", HUGE))]),
        GgufFile,
    ),
    "gguf with an array of a terabyte": (gguf_bytes([gguf_pair("a", 9, struct.pack("<IQ", 0, HUGE))]), GgufFile),
    "gguf with a terabyte of tensors": (gguf_bytes(tensor_count=HUGE), GgufFile),
    "gguf with a tensor of a terabyte": (gguf_bytes((), [gguf_tensor("w", [HUGE])], bytes(32)), GgufFile),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    content, read = BOMBS[name]
    path = tmp_path / "bomb"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(BadFile):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_an_archive_that_unpacks_to_more_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(npz({"a.npy": npy((8 << 20,), bytes(64 << 20))}, zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("toposcope.core.memory.available", lambda: 32 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(BadValue, match=re.escape(f"{(64 << 20) / 1e9:.1f} GB")):
            read_npz(path, "a flow")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_arrays_come_back_exactly(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(12.0).reshape(3, 4),
        "columns": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        "words": np.array("some words"),
        "none": np.zeros((0, 3)),
    }
    np.savez_compressed(tmp_path / "all.npz", **arrays)
    found = read_npz(tmp_path / "all.npz", "arrays")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        np.save(tmp_path / "one.npy", array)
        np.testing.assert_array_equal(read_npy(tmp_path / "one.npy", name), array)


@pytest.mark.parametrize(
    "shard", ["../a.safetensors", "/etc/passwd", "a/b.safetensors", "..", "x" * 300, "C:a", "a\0b"]
)
def test_an_index_cannot_lead_out_of_its_directory(tmp_path: Path, shard: str) -> None:
    place = tmp_path / "model"
    place.mkdir()
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes({}))
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(BadFile, match="hostile"):
        open_checkpoint(place)


@pytest.mark.parametrize("key", ["../outside", "/tmp", "..", ".", "a/b", "", "a\0"])
def test_a_foreign_index_cannot_name_directories_outside_the_store(tmp_path: Path, key: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("here")
    with Store(tmp_path / "store") as store:
        store.add([Job(key, "train", {})])
        with pytest.raises(BadFile, match="hostile"):
            store.remove(key)
        with pytest.raises(BadFile, match="hostile"):
            store.claim(Job(key, "train", {}))
    assert (outside / "precious.txt").read_text() == "here"


def test_names_inside_a_gguf_file_are_not_paths(tmp_path: Path) -> None:
    pairs = [
        gguf_pair("general.name", 8, gguf_string("../../escape")),
        gguf_pair("general.architecture", 8, gguf_string("../x")),
    ]
    path = tmp_path / "deep" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(gguf_bytes(pairs, [gguf_tensor("../../w", [8])], bytes(32)))
    before = sorted(tmp_path.rglob("*"))
    source = GgufFile(path)
    assert list(source.names()) == ["../../w"]
    assert source.read("../../w").shape == (8,)
    from toposcope.checkpoints import load

    with pytest.raises(ToposcopeError):
        load(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_selection_cannot_fill_the_memory() -> None:
    for text in ("0.0-99999999999", "0.0-999999999", "9" * 5000 + ".0", "0." + "1" * 5000):
        with pytest.raises(BadValue):
            parse_heads(text)
    assert parse_heads("3.0-2,5.1") == [(3, 0), (3, 1), (3, 2), (5, 1)]
