"""Where tensors come from: one interface for every file format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from toposcope.checkpoints.decode import Ledger

# As read: float32 where that holds the stored value exactly (bf16, f16, fp8, quantised), float64 where stored so.
Stored = NDArray[np.floating[Any]]
Rows = NDArray[np.intp]  # the numbers of some rows of a tensor


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's header, known before any of its bytes are read."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as the format calls it: "BF16", "F32", "Q4_1", ...
    nbytes: int  # on disk


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
