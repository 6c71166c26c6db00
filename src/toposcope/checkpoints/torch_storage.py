"""Where in a torch file the numbers of its tensors lie, so that they are read from there and not from a mapping.

`torch.load` is asked to map the file, and handed storages without data in place of the mapped ones: no byte of the
mapping is touched, and it is gone when the load ends. What remains of it are addresses. Less the mapping's own
address these are places in the file; that one follows from the archive's directory, which lists the same storages.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.decode import BLOCK, SMALL_FLOATS, parts_of
from toposcope.checkpoints.source import Rows
from toposcope.checkpoints.stored_file import StoredFile
from toposcope.core.errors import BadFile

_DATA = re.compile(r"(.*/)?data/[^/]+")
_LOCAL = 30  # bytes of the head before each entry; the lengths of name and extra field are the last two numbers


@dataclass(frozen=True)
class _Span:
    start: int
    end: int


class StoragePlaces:
    """The storages of a file by the tensors that torch built on them, which have no data themselves."""

    def __init__(self, file: StoredFile, storages: Mapping[int, _Span], alive: Sequence[Any]) -> None:
        self._file = file
        self._storages = storages
        self._alive = alive  # a storage's number is its own only while it lives

    def parts(self, name: str, tensor: Any) -> tuple[Iterator[NDArray[Any]], np.dtype[Any]]:
        """The tensor's numbers in their order, some at a time, and their type."""
        dtype, (start, end) = self._dtype(name, tensor), self._span(name, tensor)
        if tensor.is_contiguous() and not tensor.is_neg():
            return (part.view(dtype) for part in self._file.parts(start, end, BLOCK * dtype.itemsize)), dtype
        return parts_of(self._strided(tensor, dtype, start, end)), dtype

    def rows(self, name: str, tensor: Any, rows: Rows) -> NDArray[Any]:
        """Some rows of the tensor."""
        dtype, (start, end) = self._dtype(name, tensor), self._span(name, tensor)
        if tensor.is_contiguous() and not tensor.is_neg():
            found = self._file.rows(start, end, len(tensor), rows).view(dtype)
            return found.reshape(-1, *tensor.shape[1:])
        return self._strided(tensor, dtype, start, end)[rows]

    def _strided(self, tensor: Any, dtype: np.dtype[Any], start: int, end: int) -> NDArray[Any]:
        flat = self._file.read(start, end).view(f"u{dtype.itemsize}")  # numpy strides no 8-bit floats
        strides = [step * dtype.itemsize for step in tensor.stride()]
        shape = tuple(tensor.shape)
        found = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False).view(dtype)
        return -found if tensor.is_neg() else found

    def _span(self, name: str, tensor: Any) -> tuple[int, int]:
        """The bytes of the file from the tensor's first number to its last."""
        place = self._storages.get(tensor.untyped_storage()._cdata)
        if place is None:
            raise refused(self._file, name, "without data")
        reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        count = 0 if tensor.numel() == 0 else 1 + reach
        start = place.start + tensor.storage_offset() * tensor.element_size()
        end = start + count * tensor.element_size()
        if count and not place.start <= start <= end <= place.end:
            raise BadFile(
                f"tensor '{name}' in {self._file.path} claims numbers beyond the end of its data. "
                "Save the model again."
            )
        return start, end

    def _dtype(self, name: str, tensor: Any) -> np.dtype[Any]:
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized:
            raise refused(self._file, name, "sparse or quantised")
        if tensor.is_complex():
            raise refused(self._file, name, "complex")
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind == "bool":
            return np.dtype(np.uint8)  # a byte other than 0 and 1 must not become an invalid numpy bool
        if kind in SMALL_FLOATS:
            return SMALL_FLOATS[kind]
        try:
            return np.dtype(kind).newbyteorder("<")
        except TypeError as error:
            raise BadFile(
                f"tensor '{name}' in {self._file.path} has the type {kind}, which is not read. "
                "Convert the checkpoint to bfloat16 or float32 first."
            ) from error


def refused(file: StoredFile, name: str, what: str) -> BadFile:
    return BadFile(
        f"tensor '{name}' in {file.path} is {what}, and a plain dense tensor was expected. "
        "Convert it with .dequantize() or .to_dense() and save the model again."
    )


def load_places(file: StoredFile, entries: Sequence[zipfile.ZipInfo]) -> tuple[Any, StoragePlaces] | None:
    """What the pickle in a torch archive says, and where its tensors' numbers lie; None where that cannot be told."""
    import torch

    if any(entry.filename.endswith("byteorder") and file_bytes(file, entry) != b"little" for entry in entries):
        return None
    seen: list[tuple[Any, int, int]] = []

    def without_data(storage: Any, location: str) -> Any:
        empty = torch.UntypedStorage(storage.nbytes(), device="meta")
        seen.append((empty, storage.data_ptr(), storage.nbytes()))
        return empty

    loaded = torch.load(file.path, map_location=without_data, weights_only=True, mmap=True)
    ours = sorted({(address, size) for _, address, size in seen if size})
    theirs = sorted(
        (_begin(file, entry), entry.file_size)
        for entry in entries
        if entry.file_size and _DATA.fullmatch(entry.filename)
    )
    shifts = {address - start for (address, _), (start, _) in zip(ours, theirs, strict=False)}
    if [size for _, size in ours] != [size for _, size in theirs] or len(shifts) > 1:
        return None
    (shift,) = shifts or {0}
    storages = {
        empty._cdata: _Span(address - shift, address - shift + size) if size else _Span(0, 0)
        for empty, address, size in seen
    }
    return loaded, StoragePlaces(file, storages, [empty for empty, _, _ in seen])


def file_bytes(file: StoredFile, entry: zipfile.ZipInfo) -> bytes:
    start = _begin(file, entry)
    return file.read(start, min(start + entry.file_size, file.size)).tobytes()


def _begin(file: StoredFile, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an archive's entry begin."""
    at = entry.header_offset
    if not 0 <= at <= file.size - _LOCAL:
        raise BadFile(
            f"{file.path} is a damaged torch file: an entry begins behind its end. Download or save it again."
        )
    lengths = file.read(at + _LOCAL - 4, at + _LOCAL).view("<u2")
    return at + _LOCAL + int(lengths[0]) + int(lengths[1])
