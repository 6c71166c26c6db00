"""The header of a GGUF file: its key-value pairs and the places of its tensors.

Every count and length is compared with the bytes that are left before it is believed. Long arrays (a vocabulary, its
merges and scores) are stepped over and decoded only when asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from toposcope.checkpoints.decode import LONGEST_NAME, sound_name
from toposcope.checkpoints.stored_file import ByteFile
from toposcope.core.errors import BadFile
from toposcope.core.memory import require_memory

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SMALL_ARRAY = 4096  # entries; per-layer settings are far below, vocabularies far above
MOST_STRINGS = 20_000_000  # in one array; the largest vocabularies and merge lists are below a million
MOST_PAIRS = 100_000
MOST_TENSORS = 1_000_000
MOST_DIMENSIONS = 4
DEEPEST_ARRAY = 4
LONGEST_TEXT = 1 << 26  # bytes of one setting; the templates of chats have some thousands
WINDOW = 1 << 20  # bytes read at a time

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype(np.bool_),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True)
class TensorPlace:
    """What the header says of one tensor; `sizes` are in ggml's order, the fastest first."""

    name: str
    sizes: tuple[int, ...]
    type_id: int
    offset: int  # from the beginning of the data


@dataclass(frozen=True)
class Header:
    """All that stands before the data."""

    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorPlace, ...]
    end: int  # of the header, before the padding


class LongArray(Sequence[Any]):
    """An array of the header that is decoded when it is used: its length is known, its entries are read on demand."""

    def __init__(self, file: ByteFile, start: int, end: int, type_id: int, count: int) -> None:
        self._file = file
        self._start, self._end = start, end
        self._type_id = type_id
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<{self._count} entries, not decoded>"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.decode())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.decode()[index]

    def decode(self) -> list[Any]:
        """All entries, as a list."""
        size = self._end - self._start
        require_memory(
            size + 64 * self._count, f"a list of {self._count:,} entries of {self._file.path}", "Leave it out."
        )
        buffer = self._file.read(self._start, self._end).data
        dtype = _SCALARS.get(self._type_id)
        if dtype is not None:
            return _numbers(buffer, dtype)
        texts, at = [], 0
        for _ in range(self._count):
            (length,) = struct.unpack_from("<Q", buffer, at)
            texts.append(_text(buffer[at + 8 : at + 8 + length]))
            at += 8 + length
        return texts


def parse_header(path: Path, file: ByteFile) -> Header:
    """Read and check the whole header."""
    cursor = _Cursor(path, file)
    magic = cursor.take(4, "its magic number")
    if magic != MAGIC:
        raise cursor.bad(f"it begins with {bytes(magic)!r} and not with 'GGUF'")
    version = cursor.number("<I", "its version")
    if version not in VERSIONS:
        raise _unknown_version(path, version)
    tensor_count = cursor.number("<Q", "its number of tensors")
    pair_count = cursor.number("<Q", "its number of settings")
    # The shortest setting is 14 bytes (length, one letter, type, value), the shortest tensor 25.
    cursor.refuse_count(pair_count, 14, MOST_PAIRS, "settings")
    cursor.refuse_count(tensor_count, 25, MOST_TENSORS, "tensors")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.name("a setting's name")
        if key in metadata:
            raise cursor.bad(f"the setting '{key}' stands there twice")
        metadata[key] = cursor.value(cursor.number("<I", f"the type of '{key}'"), key)
    places: dict[str, TensorPlace] = {}
    for _ in range(tensor_count):
        place = cursor.tensor()
        if place.name in places:
            raise cursor.bad(f"tensor '{place.name}' stands there twice")
        places[place.name] = place
    return Header(version, metadata, tuple(places.values()), cursor.at)


class _Cursor:
    """A place in the header, moving forward and never past the end."""

    def __init__(self, path: Path, file: ByteFile) -> None:
        self._path = path
        self._file = file
        self._window, self._from = memoryview(b""), 0  # some bytes of the file, and where they begin
        self.at = 0

    @property
    def left(self) -> int:
        return self._file.size - self.at

    def bad(self, what: str) -> BadFile:
        return BadFile(f"{self._path} is not a sound GGUF file: {what}. Download or save it again.")

    def step(self, count: int, what: str) -> int:
        """Go over so many bytes without reading them; where they begin."""
        if count > self.left:
            raise self.bad(f"{what} needs {count:,} bytes at byte {self.at:,} and only {self.left:,} are left")
        self.at += count
        return self.at - count

    def take(self, count: int, what: str) -> memoryview:
        return self._bytes(self.step(count, what), count)

    def _bytes(self, at: int, count: int) -> memoryview:
        if not self._from <= at <= at + count <= self._from + len(self._window):
            end = min(at + max(count, WINDOW), self._file.size)
            self._window, self._from = self._file.read(at, end).data, at
        return self._window[at - self._from : at - self._from + count]

    def number(self, code: str, what: str) -> int:
        (value,) = struct.unpack(code, self.take(struct.calcsize(code), what))
        return int(value)

    def refuse_count(self, count: int, each: int, most: int, what: str) -> None:
        if count * each > self.left:
            raise self.bad(f"it announces {count:,} {what}, more than its remaining {self.left:,} bytes can hold")
        if count > most:
            raise self.bad(f"it announces {count:,} {what}, beyond any real model's (at most {most:,})")

    def name(self, what: str) -> str:
        length = self.number("<Q", what)
        if not 0 < length <= 4 * LONGEST_NAME:
            raise self.bad(f"{what} at byte {self.at:,} has {length:,} bytes; expected 1 to {LONGEST_NAME:,} letters")
        try:
            found = str(self.take(length, what), "utf-8")
        except UnicodeDecodeError as error:
            raise self.bad(f"{what} at byte {self.at - length:,} is not UTF-8 text") from error
        if not sound_name(found):
            raise self.bad(f"{what} at byte {self.at - length:,} is the impossible {found!r:.60}")
        return found

    def value(self, type_id: int, key: str) -> Any:
        dtype = _SCALARS.get(type_id)
        if dtype is not None:
            return _numbers(self.take(dtype.itemsize, f"'{key}'"), dtype)[0]
        if type_id == _STRING:
            length = self.number("<Q", f"'{key}'")
            if LONGEST_TEXT < length <= self.left:
                raise self.bad(f"the text '{key}' has {length:,} bytes; expected at most {LONGEST_TEXT:,}")
            return _text(self.take(length, f"'{key}'"))
        if type_id == _ARRAY:
            return self.array(key, 1)
        raise self.bad(f"the setting '{key}' has the unknown type {type_id}")

    def array(self, key: str, depth: int) -> Any:
        """A list when it is short, a LongArray otherwise."""
        type_id = self.number("<I", f"'{key}'")
        count = self.number("<Q", f"'{key}'")
        start = self.at
        dtype = _SCALARS.get(type_id)
        if dtype is not None:
            self.step(count * dtype.itemsize, f"the array '{key}' of {count:,} numbers")
        elif type_id == _STRING:
            self.refuse_count(count, 8, MOST_STRINGS, f"texts in '{key}'")
            self.skip_strings(count, key)
        elif type_id == _ARRAY:
            # An array in an array takes 12 bytes at least. No known model has one; those few are decoded at once.
            self.refuse_count(count, 12, SMALL_ARRAY, f"arrays in '{key}'")
            if depth == DEEPEST_ARRAY:
                raise self.bad(f"the arrays of '{key}' are nested more than {DEEPEST_ARRAY} deep")
            return [self.array(key, depth + 1) for _ in range(count)]
        else:
            raise self.bad(f"the array '{key}' has entries of the unknown type {type_id}")
        found = LongArray(self._file, start, self.at, type_id, count)
        return found.decode() if count <= SMALL_ARRAY else found

    def skip_strings(self, count: int, key: str) -> None:
        """Step over texts without decoding them: a vocabulary has hundreds of thousands."""
        at, end = self.at, self._file.size
        unpack = struct.Struct("<Q").unpack_from
        window, first, last = self._window, self._from, self._from + len(self._window) - 8
        for _ in range(count):
            if at > end - 8:
                raise self.bad(f"the array '{key}' of {count:,} texts ends with the file")
            if not first <= at <= last:
                self._bytes(at, 8)
                window, first, last = self._window, self._from, self._from + len(self._window) - 8
            at += 8 + unpack(window, at - first)[0]
        if at > end:
            raise self.bad(f"the array '{key}' of {count:,} texts runs past the end of the file")
        self.at = at

    def tensor(self) -> TensorPlace:
        name = self.name("a tensor's name")
        dimensions = self.number("<I", f"tensor '{name}'")
        if dimensions > MOST_DIMENSIONS:
            raise self.bad(f"tensor '{name}' has {dimensions:,} dimensions; expected at most {MOST_DIMENSIONS}")
        sizes = struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions, f"the shape of '{name}'"))
        type_id = self.number("<I", f"the type of '{name}'")
        return TensorPlace(name, sizes, type_id, self.number("<Q", f"the offset of '{name}'"))


def _unknown_version(path: Path, version: int) -> BadFile:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *VERSIONS):
        return BadFile(
            f"{path} is a big-endian GGUF file (version {swapped}), and little-endian was expected. "
            "Convert it with the gguf package: gguf-convert-endian FILE little."
        )
    return BadFile(
        f"{path} is GGUF version {version}, and version 2 or 3 was expected. Convert the model again with a "
        "current llama.cpp."
    )


def _numbers(buffer: memoryview, dtype: np.dtype[Any]) -> list[Any]:
    if dtype == np.bool_:  # any byte but 0 means true, and must not become an invalid numpy bool
        return [bool(byte) for byte in buffer]
    return list(np.frombuffer(buffer, dtype=dtype).tolist())


def _text(buffer: memoryview) -> str:
    # A bad letter in a description must not keep anyone from reading the weights.
    return str(buffer, "utf-8", "replace")
