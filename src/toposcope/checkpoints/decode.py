"""From stored numbers to floats that hold them exactly, block by block, so that no second copy is ever in memory.

bfloat16, float16, the 8-bit floats and float32 become float32; float64 and integers become float64. The hash of the
stored bytes is taken on the way, while each block is in the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.source import Stored, TensorInfo
from toposcope.core.errors import BadFile, BadWeights

BLOCK = 1 << 18  # numbers at a time: in the processor's cache, large beside Python's overhead
LARGEST = 1 << 60  # no array may claim more numbers than this; numpy's own limit is near 2^63 bytes
LONGEST_NAME = 1024  # letters of a tensor's name
ROWS = "\n"  # between a tensor's name, which never holds it, and the numbers of its rows
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
        self._listening: list[dict[str, str]] = []

    @property
    def lines(self) -> Mapping[str, str]:
        """One line for each tensor, by name; `Ledger(lines)` is a ledger that has read the same."""
        return self._lines

    def add(self, name: str, shape: tuple[int, ...], content: str) -> None:
        self._note(name, f"{name}\0{','.join(map(str, shape))}\0{content}\n")

    def add_rows(self, name: str, rows: NDArray[Any], stored: NDArray[Any]) -> None:
        """Note that some rows of a tensor were read, as they are stored. They count while it is not read whole."""
        numbers = np.asarray(rows, dtype="<i8")
        which = hashlib.sha256(numbers.tobytes()).hexdigest()[:16]
        content = hashlib.sha256(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data).hexdigest()
        shape = ",".join(map(str, stored.shape))
        self._note(rows_key(name, numbers), f"{name}{ROWS}{which}\0{shape}\0{content}\n")

    def learn(self, lines: Mapping[str, str]) -> None:
        """Take over what another reading of the same files has noted; what differs there is refused."""
        for key, line in lines.items():
            self._note(key, line)

    @contextmanager
    def noted(self) -> Iterator[dict[str, str]]:
        """The lines of all that is read or used within the block, also of what was read before."""
        found: dict[str, str] = {}
        self._listening.append(found)
        try:
            yield found
        finally:
            self._listening.pop()

    def digest(self, *others: Ledger) -> str:
        """sha256 over names, shapes and stored bytes, in the order of the names."""
        lines = {key: line for ledger in (self, *others) for key, line in ledger._lines.items()}
        total = hashlib.sha256()
        for line in sorted(
            line for key, line in lines.items() if ROWS not in key or key.partition(ROWS)[0] not in lines
        ):
            total.update(line.encode("utf-8", "surrogatepass"))
        return total.hexdigest()

    def _note(self, key: str, line: str) -> None:
        if self._lines.setdefault(key, line) != line:
            raise BadFile(
                f"tensor '{key.partition(ROWS)[0]}' is not what it was when it was first read: its file was changed. "
                "Wait until it is complete, then start again."
            )
        for found in self._listening:
            found[key] = line


def rows_key(name: str, rows: NDArray[Any]) -> str:
    """Under which key a ledger notes that some rows of a tensor were read."""
    return f"{name}{ROWS}{','.join(map(str, rows.tolist()))}"


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


def decode(
    parts: Iterable[NDArray[Any]], dtype: np.dtype[Any], info: TensorInfo, path: Path, ledger: Ledger
) -> Stored:
    """Stored numbers, given some at a time, as floats that hold them exactly, checked for NaN and infinity."""
    wide = dtype.kind in "biu" or dtype == np.float64
    out = allocate(info.shape, np.float64 if wide else np.float32, info, path)
    flat, content, done = out.reshape(-1), hashlib.sha256(), 0
    with np.errstate(all="ignore"):
        for part in parts:
            stored = np.ascontiguousarray(part).reshape(-1)
            content.update(stored.view(np.uint8).data)
            place = flat[done : done + stored.size]
            place[...] = stored
            if not wide or dtype == np.float64:
                refuse_nonfinite(place, done, info, path)
            done += stored.size
    ledger.add(info.name, info.shape, content.hexdigest())
    return out


def parts_of(raw: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """An array in memory, some whole rows at a time."""
    if not raw.ndim:
        yield raw
        return
    step = max(1, BLOCK * len(raw) // max(raw.size, 1))
    for start in range(0, len(raw), step):
        yield raw[start : start + step]


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
