"""Tensors of a `.gguf` file, dequantised a block of rows at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.decode import (
    BLOCK,
    SMALL_FLOATS,
    Ledger,
    allocate,
    decode,
    element_count,
    refuse_nonfinite,
)
from toposcope.checkpoints.gguf_header import LongArray, TensorPlace, parse_header
from toposcope.checkpoints.source import ByName, Rows, Stored, TensorInfo
from toposcope.checkpoints.stored_file import ByteFile, Bytes, Place, StoredFile
from toposcope.core.errors import BadFile

DEFAULT_ALIGNMENT = 32
LARGEST_ALIGNMENT = 1 << 20

# Types that numpy holds as they are; all others go through the gguf package.
_PLAIN: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "BF16": SMALL_FLOATS["bfloat16"],
    "I8": np.dtype("<i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}


@dataclass(frozen=True)
class _GgufTensor:
    info: TensorInfo
    type_id: int
    step: int  # bytes to decode at a time: whole blocks of quantised numbers
    start: int  # from the beginning of the file
    end: int


class GgufFile:
    """One `.gguf` file as a source of tensors; shapes are in PyTorch's order, the reverse of ggml's.

    `file` has its bytes where they do not lie at `path`.
    """

    format = "gguf"

    def __init__(self, path: Path, *, shown: Path | None = None, file: ByteFile | None = None) -> None:
        self.path = shown or path  # what the user pointed at, which may be the directory
        self._file = file or StoredFile(path)
        self.ledger = Ledger()
        header = parse_header(path, self._file)
        self.metadata: Mapping[str, Any] = header.metadata
        alignment = _alignment(path, header.metadata)
        data_start = -(-header.end // alignment) * alignment
        entries = {
            place.name: _entry(path, place, data_start, alignment, self._file.size) for place in header.tensors
        }
        _refuse_overlap(path, entries)
        self._entries = ByName(entries, path)

    def array(self, key: str) -> list[Any]:
        """An array of the metadata, decoded in full however long it is (a vocabulary)."""
        found = self.metadata[key]
        return found.decode() if isinstance(found, LongArray) else list(found)

    def names(self) -> Collection[str]:
        return self._entries.keys()

    def info(self, name: str) -> TensorInfo:
        return self._entries[name].info

    def read(self, name: str) -> Stored:
        """The tensor as float32, dequantised; float64 where it is stored so, and for integers."""
        entry = self._entries[name]
        return _decoded(self._file.parts(entry.start, entry.end, entry.step), entry, self._file.path, self.ledger)

    def read_rows(self, name: str, rows: Rows) -> Stored:
        entry = self._entries[name]
        stored = self._file.rows(entry.start, entry.end, entry.info.shape[0], rows)
        self.ledger.add_rows(name, rows, stored)
        part = replace(entry, info=replace(entry.info, shape=(len(stored), *entry.info.shape[1:])))
        return _decoded([stored.reshape(-1)], part, self._file.path, Ledger())

    def place(self, name: str) -> Place:
        entry = self._entries[name]
        return self._file, entry.start, entry.end

    @property
    def files(self) -> tuple[Path, ...]:
        return (self._file.path,)

    def digest(self) -> str:
        return self.ledger.digest()

    def close(self) -> None:
        self._file.close()


def _decoded(parts: Iterable[Bytes], entry: _GgufTensor, path: Path, ledger: Ledger) -> Stored:
    plain = _PLAIN.get(entry.info.dtype)
    if plain is None:
        return _dequantise(parts, entry, path, ledger)
    return decode((part.view(plain) for part in parts), plain, entry.info, path, ledger)


def _dequantise(parts: Iterable[Bytes], entry: _GgufTensor, path: Path, ledger: Ledger) -> Stored:
    """Each part holds whole quantisation blocks."""
    import gguf
    from gguf.quants import dequantize

    kind = gguf.GGMLQuantizationType(entry.type_id)
    out = allocate(entry.info.shape, np.float32, entry.info, path)
    flat, content, done = out.reshape(-1), hashlib.sha256(), 0
    with np.errstate(all="ignore"):  # a scale of infinity is reported below, as a sentence
        for part in parts:
            content.update(part.data)
            try:
                # Blocks stand alone, so any run of them is a row; one row keeps gguf from looping over many.
                values = dequantize(part.reshape(1, -1), kind).reshape(-1)
            except NotImplementedError as error:
                raise BadFile(
                    f"tensor '{entry.info.name}' in {path} has the type {entry.info.dtype}, which the installed gguf "
                    "package cannot decode. Convert the model to F16, Q8_0 or a K-quantisation, or upgrade gguf."
                ) from error
            place = flat[done : done + values.size]
            place[...] = values
            refuse_nonfinite(place, done, entry.info, path)
            done += values.size
    ledger.add(entry.info.name, entry.info.shape, content.hexdigest())
    return out


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    power_of_two = type(alignment) is int and 0 < alignment <= LARGEST_ALIGNMENT and alignment & (alignment - 1) == 0
    if not power_of_two:
        raise _bad(path, f"general.alignment is {alignment!r:.60}; expected a power of two")
    return int(alignment)


def _entry(path: Path, place: TensorPlace, data_start: int, alignment: int, size: int) -> _GgufTensor:
    """One tensor of the header, checked on its own."""
    import gguf

    name = place.name
    try:
        kind = gguf.GGMLQuantizationType(place.type_id)
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise _bad(
            path, f"tensor '{name}' has type number {place.type_id}, which the installed gguf package does not know"
        ) from error
    shape = tuple(reversed(place.sizes))
    count = element_count(shape)
    if count is None:
        raise _bad(path, f"tensor '{name}' has the impossible shape {shape}")
    row = shape[-1] if shape else 1
    if row % block_size:
        raise _bad(path, f"tensor '{name}' has rows of {row:,}, not a multiple of {kind.name}'s {block_size}")
    nbytes = count // block_size * block_bytes
    step = max(1, BLOCK // block_size) * block_bytes
    start = data_start + place.offset
    if place.offset % alignment:
        raise _bad(path, f"tensor '{name}' begins at byte {place.offset:,}, not a multiple of {alignment}")
    if start + nbytes > size:
        raise _bad(path, f"tensor '{name}' ends at byte {start + nbytes:,} and the file at {size:,}")
    return _GgufTensor(TensorInfo(name, shape, kind.name, nbytes), place.type_id, step, start, start + nbytes)


def _refuse_overlap(path: Path, entries: Mapping[str, _GgufTensor]) -> None:
    end, previous = 0, ""
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start < end:
            raise _bad(path, f"tensor '{entry.info.name}' overlaps tensor '{previous}'")
        end, previous = entry.end, entry.info.name


def _bad(path: Path, what: str) -> BadFile:
    return BadFile(f"{path} is not a sound GGUF file: {what}. Download or save it again.")
