"""From stored numbers to floats that hold them exactly, block by block, so that no second copy is ever in memory.

bfloat16, float16, the 8-bit floats and float32 become float32; float64 and integers become float64. The hash of the
stored bytes is taken on the way, while each block is in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.source import Stored, TensorInfo
from toposcope.errors import BadFile, BadWeights

BLOCK = 1 << 18  # numbers at a time: small beside any model, large beside Python's overhead
LARGEST = 1 << 60  # no array may claim more numbers than this; numpy's own limit is near 2^63 bytes
LONGEST_NAME = 1024  # letters of a tensor's name
_ROWS = "\n"  # between a tensor's name, which never holds it, and what tells its rows
MOST_DIMENSIONS = 32  # numpy 1.x allows no more

# 8-bit floats by name; ml_dtypes gained some of them late.
SMALL_FLOATS: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(ml_dtypes, name)
}


class Ledger:
    """The hashes of the tensors read so far, from which a checkpoint's digest is formed."""

    def __init__(self, lines: Mapping[str, str] | None = None) -> None:
        self._lines: dict[str, str] = dict(lines or {})

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    @property
    def lines(self) -> Mapping[str, str]:
        """One line for each tensor, by name; `Ledger(lines)` is a ledger that has read the same."""
        return self._lines

    def add(self, name: str, shape: tuple[int, ...], content: str) -> None:
        self._lines[name] = f"{name}\0{','.join(map(str, shape))}\0{content}\n"

    def add_rows(self, name: str, rows: NDArray[Any], stored: NDArray[Any]) -> None:
        """Note that some rows of a tensor were read, as they are stored. They count while it is not read whole."""
        which = hashlib.sha256(np.asarray(rows, dtype="<i8").tobytes()).hexdigest()[:16]
        content = hashlib.sha256(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data).hexdigest()
        self.add(f"{name}{_ROWS}{which}", stored.shape, content)

    def digest(self, *others: Ledger) -> str:
        """sha256 over names, shapes and stored bytes, in the order of the names."""
        lines = {name: line for ledger in (self, *others) for name, line in ledger._lines.items()}
        total = hashlib.sha256()
        for name in sorted(lines):
            if name.partition(_ROWS)[0] == name or name.partition(_ROWS)[0] not in lines:
                total.update(lines[name].encode("utf-8", "surrogatepass"))
        return total.hexdigest()


def sound_name(name: str) -> bool:
    """Whether a name can be shown to the user: a hostile file could put terminal commands into it."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


def element_count(shape: tuple[int, ...]) -> int | None:
    """The number of entries of a shape, or None where no array could have that shape."""
    if len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape):
        return None
    count, extent = 1, 1
    for size in shape:
        count *= size
        extent *= max(size, 1)  # numpy refuses (0, 2^63) too
        if extent > LARGEST:
            return None
    return count


def decode(raw: NDArray[Any], info: TensorInfo, path: Path, ledger: Ledger) -> Stored:
    """A stored array as floats that hold it exactly, checked for NaN and infinity."""
    wide = raw.dtype.kind in "biu" or raw.dtype == np.float64
    out = allocate(raw.shape, np.float64 if wide else np.float32, info, path)
    content = None if info.name in ledger else hashlib.sha256()
    done = 0
    with np.errstate(all="ignore"):
        for stored, place in _blocks(raw, out):
            if content is not None:
                content.update(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data)
            place[...] = stored
            if not wide or raw.dtype == np.float64:
                refuse_nonfinite(place, done, info, path)
            done += place.size
    if content is not None:
        ledger.add(info.name, info.shape, content.hexdigest())
    return out


def allocate(shape: tuple[int, ...], dtype: Any, info: TensorInfo, path: Path) -> Stored:
    """An empty array, or a sentence when memory does not hold it."""
    try:
        return np.empty(shape, dtype=dtype)
    except MemoryError as error:
        need = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize / 2**30
        raise BadFile(
            f"tensor '{info.name}' in {path} takes {need:.1f} GB of memory once read, more than is free. "
            "Close other programs or use a larger machine."
        ) from error


def refuse_nonfinite(block: Stored, start: int, info: TensorInfo, path: Path) -> None:
    """Raise BadWeights when a block, whose first entry is entry `start` of its tensor, holds NaN or infinity."""
    finite = np.isfinite(block)
    if finite.all():
        return
    first = int(np.argmin(finite.reshape(-1)))
    at = tuple(int(i) for i in np.unravel_index(start + first, info.shape)) if info.shape else ()
    raise BadWeights(
        f"tensor '{info.name}' in {path} holds {float(block.reshape(-1)[first])} at index {at}, and finite numbers "
        "were expected. The training may have diverged or the file may be damaged: compare it with its original."
    )


def _blocks(raw: NDArray[Any], out: Stored) -> Iterator[tuple[NDArray[Any], Stored]]:
    """Pairs of matching blocks of a stored array and of the array it is copied to."""
    if raw.flags.c_contiguous:
        raw, out = raw.reshape(-1), out.reshape(-1)
        step = BLOCK
    else:  # a transposed view in a torch file: whole rows, since its bytes do not follow one another
        step = max(1, BLOCK * len(raw) // max(raw.size, 1))
    for start in range(0, len(raw), step):
        yield raw[start : start + step], out[start : start + step]
