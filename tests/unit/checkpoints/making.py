"""Small checkpoints, sound and unsound, made byte by byte for the tests of the readers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def safetensors_bytes(header: Mapping[str, Any] | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file with any header, true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors_of(arrays: Mapping[str, tuple[str, np.ndarray]]) -> bytes:
    """A sound safetensors file of (type, array)."""
    header: dict[str, Any] = {}
    data = b""
    for name, (kind, array) in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return safetensors_bytes(header, data)


def one_float(**changes: Any) -> bytes:
    """A file of one tensor 'w' of four floats, with parts of its entry replaced."""
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes
    return safetensors_bytes({"w": entry}, np.arange(4, dtype="<f4").tobytes())


def gguf_string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_pair(key: str | bytes, type_id: int, value: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", type_id) + value


def gguf_tensor(
    name: str | bytes, sizes: Sequence[int], type_id: int = 0, offset: int = 0, *, dims: int | None = None
) -> bytes:
    shape = struct.pack("<I", len(sizes) if dims is None else dims) + b"".join(struct.pack("<Q", s) for s in sizes)
    return gguf_string(name) + shape + struct.pack("<IQ", type_id, offset)


def gguf_bytes(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    pair_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file with any header, true or not."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    head += b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
