"""How much of normal weights is lost in each type, measured by rounding some."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from toposcope.checkpoints.quantised.bitsandbytes import _TABLES
from toposcope.checkpoints.quantised.fp4 import E2M1
from toposcope.checkpoints.quantised.stored import label
from toposcope.dynamics.storage import storage_error

WEIGHT = np.random.default_rng(0).standard_normal((64, 4096))


def lost(rounded: np.ndarray) -> float:
    return float(np.linalg.norm(rounded.reshape(WEIGHT.shape) - WEIGHT) / np.linalg.norm(WEIGHT))


def nearest(numbers: np.ndarray, table: np.ndarray) -> np.ndarray:
    table = np.unique(table)
    return table[np.searchsorted((table[1:] + table[:-1]) / 2, numbers)]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("size", [32, 128, 4096])
def test_integers_in_groups(bits: int, size: int) -> None:
    groups = WEIGHT.reshape(64, -1, size)
    low = groups.min(-1, keepdims=True)
    step = (groups.max(-1, keepdims=True) - low) / (2**bits - 1)
    found = lost(np.round((groups - low) / step) * step + low)
    assert storage_error(label(bits, "gptq", size, 4096)) == pytest.approx(found, rel=0.15)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_tables_in_blocks(kind: str) -> None:
    blocks = WEIGHT.reshape(64, -1, 64)
    largest = np.abs(blocks).max(-1, keepdims=True)
    found = lost(nearest(blocks / largest, np.array(_TABLES[kind])) * largest)
    assert storage_error(f"Q4 {kind} (blocks of 64)") == pytest.approx(found, rel=0.02)


def test_nvfp4() -> None:
    groups = WEIGHT.reshape(64, -1, 16)
    whole = np.abs(WEIGHT).max() / (448 * 6)
    scale = np.abs(groups).max(-1, keepdims=True) / 6 / whole
    scale = scale.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * whole
    assert storage_error("NVFP4") == pytest.approx(lost(nearest(groups / scale, E2M1) * scale), rel=0.02)


def test_types_of_files_are_as_before() -> None:
    assert storage_error("BF16") == 2.0**-8
    assert storage_error("Q4_0") == 1.4 / 16
    assert storage_error("ternary bitnet") == 1.0
