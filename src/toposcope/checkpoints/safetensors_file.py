"""Tensors of a `.safetensors` file.

The header is parsed here rather than by the safetensors package, whose numpy bindings give neither bfloat16 nor the
8-bit floats. Every claim of the header is checked against the size of the file before anything is allocated: the
format allows no overlap, no hole and no trailing bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.decode import BLOCK, SMALL_FLOATS, Ledger, decode, element_count, sound_name
from toposcope.checkpoints.source import ByName, Rows, Stored, TensorInfo
from toposcope.checkpoints.stored_file import ByteFile, Place, StoredFile
from toposcope.core.errors import BadFile

HEADER_LIMIT = 100_000_000  # bytes; the limit of the reference implementation

# Bits per number. Those without an entry in _NUMPY can stand in a file, and are refused only when read.
_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E8M0": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}
_SMALL_NAMES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.uint8),  # a byte other than 0 and 1 must not become an invalid numpy bool
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    **{ours: SMALL_FLOATS[theirs] for ours, theirs in _SMALL_NAMES.items() if theirs in SMALL_FLOATS},
}


@dataclass(frozen=True)
class _SafeTensor:
    info: TensorInfo
    start: int  # from the beginning of the file
    end: int


class SafetensorsFile:
    """One `.safetensors` file as a source of tensors; `file` has its bytes where they do not lie at `path`."""

    format = "safetensors"

    def __init__(self, path: Path, *, shown: Path | None = None, file: ByteFile | None = None) -> None:
        self.path = shown or path  # what the user pointed at, which may be the directory
        self._file = file or StoredFile(path)
        self.ledger = Ledger()
        entries, self.metadata = _read_header(self._file)
        self._entries = ByName(entries, self._file.path)

    def names(self) -> Collection[str]:
        return self._entries.keys()

    def info(self, name: str) -> TensorInfo:
        return self._entries[name].info

    def read(self, name: str) -> Stored:
        """The tensor as float32, or as float64 where float32 does not hold it (F64 and integers)."""
        entry = self._entries[name]
        dtype = self._dtype(entry)
        parts = (part.view(dtype) for part in self._file.parts(entry.start, entry.end, BLOCK * dtype.itemsize))
        return decode(parts, dtype, entry.info, self._file.path, self.ledger)

    def read_rows(self, name: str, rows: Rows) -> Stored:
        entry = self._entries[name]
        dtype, count = self._dtype(entry), entry.info.shape[0]
        stored = self._file.rows(entry.start, entry.end, count, rows).view(dtype).reshape(-1, *entry.info.shape[1:])
        self.ledger.add_rows(name, rows, stored)
        return decode([stored], dtype, replace(entry.info, shape=stored.shape), self._file.path, Ledger())

    def place(self, name: str) -> Place:
        entry = self._entries[name]
        return self._file, entry.start, entry.end

    @property
    def files(self) -> tuple[Path, ...]:
        return (self._file.path,)

    def _dtype(self, entry: _SafeTensor) -> np.dtype[Any]:
        dtype = _NUMPY.get(entry.info.dtype)
        if dtype is None:
            raise BadFile(
                f"tensor '{entry.info.name}' in {self._file.path} has the type {entry.info.dtype}, which is not "
                f"read; expected one of {', '.join(_NUMPY)}. Convert the checkpoint to BF16 or F32 first."
            )
        return dtype

    def digest(self) -> str:
        return self.ledger.digest()

    def close(self) -> None:
        self._file.close()


def _read_header(file: ByteFile) -> tuple[dict[str, _SafeTensor], Mapping[str, str]]:
    """The tensors by name, and the file's own remarks."""
    path = file.path
    if file.size < 8:
        raise _bad(path, f"it has {file.size} bytes, fewer than the 8 that give the length of the header")
    length = int.from_bytes(file.read(0, 8).tobytes(), "little")
    if length > file.size - 8:
        raise _bad(path, f"it announces a header of {length:,} bytes and only {file.size - 8:,} follow")
    if length > HEADER_LIMIT:
        raise _bad(path, f"it announces a header of {length:,} bytes, beyond the {HEADER_LIMIT:,} the format allows")
    header = _parse_json(path, file.read(8, 8 + length).tobytes())
    metadata = _metadata(path, header.pop("__metadata__", {}))
    data_start = 8 + length
    entries = {name: _entry(path, name, value, data_start, file.size) for name, value in header.items()}
    _refuse_gaps(path, entries, data_start, file.size)
    return entries, metadata


def _parse_json(path: Path, header: bytes) -> dict[str, Any]:
    if not header.startswith(b"{"):
        raise _bad(path, f"its header begins with {header[:1]!r} and not with '{{'")
    try:
        parsed = json.loads(header.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _bad(path, f"its header is not UTF-8 text (byte {error.start})") from error
    except RecursionError as error:
        raise _bad(path, "its header is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, a duplicate key, NaN, or a number of thousands of digits
        raise _bad(path, f"its header is not the JSON it should be ({error})") from error
    if not isinstance(parsed, dict):
        raise _bad(path, "its header is not a JSON object")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r:.60} stands there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _metadata(path: Path, value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _bad(path, "its __metadata__ is not a JSON object of strings")
    return value


def _entry(path: Path, name: str, value: Any, data_start: int, size: int) -> _SafeTensor:
    """One line of the header, checked on its own."""
    if not sound_name(name):
        raise _bad(path, f"a tensor has the impossible name {name!r:.60}")
    if not isinstance(value, dict) or not value.keys() >= {"dtype", "shape", "data_offsets"}:
        raise _bad(path, f"tensor '{name}' lacks its dtype, shape or data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _bad(path, f"tensor '{name}' has the type {dtype!r:.60}; expected one of {', '.join(_BITS)}")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise _bad(path, f"tensor '{name}' has the shape {shape!r:.60}; expected a list of integers")
    count = element_count(tuple(shape))
    if count is None:
        raise _bad(path, f"tensor '{name}' has the impossible shape {shape!r:.60}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(at) is int for at in offsets):
        raise _bad(path, f"tensor '{name}' has the data_offsets {offsets!r:.60}; expected two integers")
    begin, end = offsets
    if not 0 <= begin <= end <= size - data_start:
        raise _bad(
            path,
            f"tensor '{name}' claims bytes {begin:,} to {end:,} of the {size - data_start:,} that the file holds",
        )
    bits = count * _BITS[dtype]
    if bits != 8 * (end - begin):
        raise _bad(
            path, f"tensor '{name}' ({dtype}, shape {shape!r:.60}) needs {bits // 8:,} bytes and has {end - begin:,}"
        )
    return _SafeTensor(TensorInfo(name, tuple(shape), dtype, end - begin), data_start + begin, data_start + end)


def _refuse_gaps(path: Path, entries: Mapping[str, _SafeTensor], data_start: int, size: int) -> None:
    """The tensors must fill the file: no overlap, no hole, nothing after the last."""
    at, previous = data_start, "the header"
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start != at:
            what = "overlaps" if entry.start < at else "leaves a hole after"
            raise _bad(path, f"tensor '{entry.info.name}' {what} {previous}")
        at, previous = entry.end, f"tensor '{entry.info.name}'"
    if at != size:
        raise _bad(path, f"{size - at:,} bytes after {previous} belong to no tensor")


def _bad(path: Path, what: str) -> BadFile:
    return BadFile(f"{path} is not a sound safetensors file: {what}. Download or save it again.")
