"""Packs weights by the published formulas, number by number and independent of the readers; opens what it packed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.checkpoints.making import safetensors_of, written
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.source import TensorSource

Arrays = dict[str, tuple[str, np.ndarray]]
W = "l.q.weight"


def opened(
    place: Path, arrays: Mapping[str, tuple[str, np.ndarray]], settings: Any = None, **others: Any
) -> TensorSource:
    """A directory of these tensors; `settings` are its quantization_config, `others` files beside it."""
    written(place / "model.safetensors", safetensors_of(arrays))
    (place / "config.json").write_text(json.dumps({} if settings is None else {"quantization_config": settings}))
    for name, content in others.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    return open_checkpoint(place).source


def stream(numbers: list[int], bits: int) -> list[int]:
    """Integers of so many bits as a stream in words of 32 bits, through one large number."""
    total = sum(number << (bits * at) for at, number in enumerate(numbers))
    count = -(-len(numbers) * bits // 32)
    return [(total >> (32 * word)) & 0xFFFFFFFF for word in range(count)]


def words(rows: list[list[int]]) -> np.ndarray:
    return np.array(rows, dtype="<u4").view("<i4")


class Gptq:
    """A weight of random codes as GPTQ stores it, and what it stands for."""

    def __init__(
        self, bits: int, *, rows: int = 32, columns: int = 64, size: int = 32, reordered: bool = False, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        self.bits, self.most = bits, 2**bits - 1
        self.codes = rng.integers(0, self.most + 1, (columns, rows))
        self.zeros = rng.integers(1, self.most + 1, (-(-columns // size), rows))
        self.scales = rng.uniform(0.01, 0.1, self.zeros.shape).astype(np.float16)
        self.of = np.arange(columns) // size
        if reordered:
            rng.shuffle(self.of)

    @property
    def weight(self) -> np.ndarray:
        """w[o, i] = scale[g, o] * (q[i, o] - zero[g, o])."""
        scale = self.scales.astype(np.float64)
        columns = [scale[g] * (self.codes[i] - self.zeros[g]) for i, g in enumerate(self.of)]
        return np.stack(columns, axis=1)

    def arrays(self, version: int = 1) -> Arrays:
        down = [stream(self.codes[:, out].tolist(), self.bits) for out in range(self.codes.shape[1])]
        zeros = self.zeros - 1 if version == 1 else self.zeros
        return {
            "l.q.qweight": ("I32", np.ascontiguousarray(words(down).T)),
            "l.q.qzeros": ("I32", words([stream(row.tolist(), self.bits) for row in zeros])),
            "l.q.scales": ("F16", self.scales),
            "l.q.g_idx": ("I32", self.of.astype("<i4")),
        }
