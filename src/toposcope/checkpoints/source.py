"""Where tensors come from: one interface for every file format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadWeights, MissingTensor
from toposcope.core.printable import printable

if TYPE_CHECKING:
    from toposcope.checkpoints.decode import Ledger

# As read: float32 where that holds the stored value exactly (bf16, f16, fp8, quantised), float64 where stored so.
Stored = NDArray[np.floating[Any]]
LARGEST_WEIGHT = 1e12  # products of three are still numbers in single precision
T = TypeVar("T")
Rows = NDArray[np.intp]  # the numbers of some rows of a tensor


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's header, known before any of its bytes are read."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as the format calls it: "BF16", "F32", "Q4_1", ...
    nbytes: int  # on disk


class ByName(dict[str, T]):
    """What a file holds, by tensor; a name that it does not hold is told in a sentence, whoever asks for it."""

    def __init__(self, held: Mapping[str, T], path: Path) -> None:
        super().__init__(held)
        self._path = path

    def __missing__(self, name: str) -> T:
        raise MissingTensor(
            f"{printable(self._path)} holds no tensor '{printable(name)}'. The file may be incomplete, or its "
            "configuration may claim more layers than are stored."
        )


def usable(weights: Stored, name: str, path: Path) -> Stored:
    """The weights, if products of them are still numbers: those of a file are only known to be finite."""
    if weights.size and not (weights.max() <= LARGEST_WEIGHT and weights.min() >= -LARGEST_WEIGHT):
        largest = float(np.abs(weights).max())
        raise BadWeights(
            f"tensor '{printable(name)}' in {printable(path)} holds a number of size {largest:.3g}; expected at most "
            f"{LARGEST_WEIGHT:g}. The training may have diverged, or the file may be damaged."
        )
    return weights


def headers(source: TensorSource, *, stored: bool = False) -> list[TensorInfo]:
    """Those of all tensors: as the model has them or, where some are made of others, as they are `stored`."""
    own = getattr(source, "headers", None)
    return [source.info(name) for name in source.names()] if own is None else own(stored=stored)


class TensorSource(Protocol):
    """Named tensors in one or several files, read one at a time."""

    @property
    def path(self) -> Path:
        """The file or directory the user pointed at."""
        ...

    @property
    def format(self) -> str:
        """'safetensors', 'gguf' or 'torch'."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the file says of itself (GGUF key-value pairs, safetensors' __metadata__)."""
        ...

    def names(self) -> Collection[str]: ...

    def info(self, name: str) -> TensorInfo: ...

    def read(self, name: str) -> Stored:
        """The whole tensor, dequantised, in its PyTorch shape; raises BadWeights on NaN or infinity."""
        ...

    def read_rows(self, name: str, rows: Rows) -> Stored:
        """Some rows of a tensor, as `read(name)[rows]` would give them; the others stay on the disk if they can."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that hold tensors, read or not."""
        ...

    @property
    def ledger(self) -> Ledger:
        """What was read so far, tensor by tensor."""
        ...

    def digest(self) -> str:
        """sha256 over the names, shapes and stored bytes of all tensors read so far (independent of the order)."""
        ...

    def close(self) -> None: ...
