"""8-bit weights times the scales that stand beside them, as one source.

DeepSeek-V3 and others store a weight in 8 bits and, in a tensor of its own, the factors that give it back its size:
one for all, one per row, or one per block of 128 x 128. Without them the numbers would look sound and be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.checkpoints.decode import Ledger
from toposcope.checkpoints.source import Rows, Stored, TensorInfo, TensorSource
from toposcope.core.errors import BadFile

USUAL_BLOCK = (128, 128)
_EIGHT_BITS = ("F8_", "I8", "float8_", "int8")
# bitsandbytes keeps the largest entry of each row, which stands for 127.
_ROW_MAXIMA = "SCB"


def with_scales(source: TensorSource, config: Mapping[str, Any] | None) -> TensorSource:
    """The same source, its 8-bit weights multiplied by their scales where it holds any."""
    names = set(source.names())
    scales = {name: scale for name in names if (scale := _scale_of(name, names)) is not None}
    return ScaledSource(source, scales, _block_size(config)) if scales else source


class ScaledSource:
    """A source in which some tensors are to be multiplied by others."""

    def __init__(self, source: TensorSource, scales: Mapping[str, str], block: tuple[int, int]) -> None:
        self._source = source
        self._scales = scales
        self._block = block

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def format(self) -> str:
        return self._source.format

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._source.metadata

    def names(self) -> Collection[str]:
        return self._source.names()

    def info(self, name: str) -> TensorInfo:
        return self._source.info(name)

    def read(self, name: str) -> Stored:
        weight = self._source.read(name)
        scale_name = self._scales.get(name)
        if scale_name is None or not self.info(name).dtype.startswith(_EIGHT_BITS):
            return weight
        weight = weight.astype(np.float32, copy=False)  # 8-bit integers were read as float64
        scale = self._source.read(scale_name).astype(np.float32, copy=False)
        if scale_name.endswith(_ROW_MAXIMA):
            scale = scale / np.float32(127)
        if not _multiply(weight, scale, self._block):
            raise BadFile(
                f"tensor '{name}' in {self.path} has shape {weight.shape} and its scale '{scale_name}' has "
                f"{scale.shape}; expected one scale, one per row, or one per block of {self._block}. "
                "Convert the checkpoint to BF16 first."
            )
        return weight

    def read_rows(self, name: str, rows: Rows) -> Stored:
        return self.read(name)[rows] if name in self._scales else self._source.read_rows(name, rows)

    @property
    def files(self) -> tuple[Path, ...]:
        return self._source.files

    @property
    def ledger(self) -> Ledger:
        return self._source.ledger

    def digest(self) -> str:
        return self._source.digest()

    def close(self) -> None:
        self._source.close()


def _scale_of(name: str, names: Collection[str]) -> str | None:
    if not name.endswith("weight"):
        return None
    candidates = (f"{name}_scale_inv", f"{name}_scale", f"{name.removesuffix('weight')}{_ROW_MAXIMA}")
    return next((candidate for candidate in candidates if candidate in names), None)


def _block_size(config: Mapping[str, Any] | None) -> tuple[int, int]:
    settings = (config or {}).get("quantization_config")
    block = settings.get("weight_block_size") if isinstance(settings, dict) else None
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        return block[0], block[1]
    return USUAL_BLOCK


def _multiply(weight: Stored, scale: Stored, block: tuple[int, int]) -> bool:
    """Multiply in place; False when the shapes do not fit."""
    if scale.size == 1:
        weight *= scale.reshape(())
        return True
    if weight.ndim != 2:
        return False
    rows, columns = weight.shape
    if scale.shape in ((rows,), (rows, 1)):
        weight *= scale.reshape(rows, 1)
        return True
    high, wide = block
    if scale.shape != (-(-rows // high), -(-columns // wide)):
        return False
    for number, factors in enumerate(scale):
        weight[number * high : (number + 1) * high] *= np.repeat(factors, wide)[:columns]
    return True
