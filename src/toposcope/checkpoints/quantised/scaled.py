"""8-bit weights times the scales that stand beside them.

    w = scale * (q - zero)

One scale for all, one per row, one per group of inputs, or one per block (128 x 128 where nothing else is said): FP8
of DeepSeek and of transformers, fbgemm, modelopt, compressed-tensors, torchao, quanto; int8 of the last three. A
scale may itself be a power of two that is stored as its exponent in a byte (MXFP8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.quantised.schemes import scheme_of
from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import (
    CODES,
    SMALL_FLOATS,
    WIDE,
    Form,
    Method,
    Tensors,
    Weight,
    beside,
    in_groups,
    modules,
)
from toposcope.checkpoints.source import Stored

USUAL_BLOCK = (128, 128)
_MX_ROWS = (1, 32)
# The codes and the scales of a weight, by the names that different packages give them.
_NAMES = (
    ("weight", "weight_scale_inv", None),
    ("weight", "weight_scale", "weight_zero_point"),
    ("_weight_qdata", "_weight_scale", "_weight_zero_point"),
    ("weight._data", "weight._scale", None),
)
_FP8 = ("fp8", "mxfp8")
_FP8_NAMES = (("weight", "scale", None), ("weight", "qscale_weight", None))  # DeepSeek-V4, Mistral Large


@dataclass(frozen=True)
class _Grid:
    """What one scale stands for: so many rows and columns."""

    high: int
    wide: int
    sides: tuple[int, int]  # the scales' shape


def find(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for codes, scale, zero in (*_NAMES, *(_FP8_NAMES if settings.method in _FP8 else ())):
        for module in modules(names, f".{scale if codes == 'weight' else codes}"):
            parts = beside(names, module, codes=codes, scale=scale, groups="weight_g_idx")
            if zero is not None:
                parts |= beside(names, module, zero=zero)
            if "codes" in parts:
                yield Weight(f"{module}.weight", parts)


def form(tensors: Tensors) -> Form:
    """The weight's own form; one that is stored wide is what it is, whatever stands beside it."""
    info = tensors.info("codes")
    if tensors.kind("codes") not in CODES:
        return Form(info.shape, info.dtype)
    tensors.require_alone("scale")
    known = SMALL_FLOATS if tensors.settings.method in _FP8 else SMALL_FLOATS | {"I8"}  # there I8 is pairs of 4 bits
    if tensors.kind("codes") not in known:
        raise tensors.bad(f"it is stored as {info.dtype}; expected {', '.join(sorted(known))}")
    shape = tensors.shape("codes", 2)
    grid = _grid(tensors, (shape[0], shape[1]))
    if tensors.has("zero"):
        tensors.require_shape("zero", tensors.info("scale").shape, grid.sides, (1,), ())
    if tensors.has("groups"):
        tensors.require_shape("groups", (shape[1],))
        if (grid.high, grid.sides[0]) != (1, shape[0]):
            raise tensors.bad("its columns are grouped by g_idx, and its scales are not in groups")
    return Form(shape, info.dtype, grid)


def read(tensors: Tensors, form: Form) -> Stored:
    if form.facts is None:
        return tensors.source.read(tensors.weight.parts["codes"])
    grid: _Grid = form.facts
    eight_bits = tensors.kind("codes") == "I8"
    weight = tensors.codes("codes", "I8").astype(np.float32) if eight_bits else tensors.floats("codes", *SMALL_FLOATS)
    scale = np.broadcast_to(_scales(tensors).reshape(_as_grid(tensors.info("scale").shape, grid)), grid.sides)
    zero = None
    if tensors.has("zero"):
        found = _zeros(tensors)
        zero = np.broadcast_to(found.reshape(_as_grid(found.shape, grid)), grid.sides) if found.any() else None
    if tensors.has("groups") and (columns := _columns(tensors, grid)) is not None:
        return in_groups(weight, scale, np.zeros_like(scale) if zero is None else zero, columns)
    _apply(weight, scale, zero, grid)
    return weight


def _grid(tensors: Tensors, shape: tuple[int, int]) -> _Grid:
    rows, columns = shape
    scale = tensors.info("scale").shape
    if not rows or not columns:
        raise tensors.bad(f"its shape is {shape}")
    if scale in ((), (1,), (1, 1)):
        return _Grid(rows, columns, (1, 1))
    if scale in ((rows,), (rows, 1)):
        return _Grid(1, columns, (rows, 1))
    high, wide = _block(tensors)
    sides = (-(-rows // high), -(-columns // wide))
    if scale != sides:
        raise tensors.bad(
            f"its shape is {shape} and that of '{tensors.info('scale').name}' {scale}; expected one scale, one per "
            f"row, or one per block of {(high, wide)}"
        )
    return _Grid(high, wide, sides)


def _block(tensors: Tensors) -> tuple[int, int]:
    """What one scale stands for, by the configuration."""
    settings = tensors.settings
    block = settings.values.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        return block[0], block[1]
    if block is not None:
        raise settings.bad("weight_block_size", "two positive integers")
    if settings.method == "compressed-tensors":
        scheme = scheme_of(settings, tensors.weight.name.removesuffix(".weight"))
        if scheme.strategy == "block" and scheme.block is not None:
            return scheme.block
        if scheme.strategy in ("group", "tensor_group") and scheme.group_size is not None:
            return 1, scheme.group_size
    algorithm = settings.text("quant_algo") or ""
    return _MX_ROWS if settings.method == "mxfp8" or algorithm == "mxfp8" else USUAL_BLOCK


def _scales(tensors: Tensors) -> NDArray[np.float32]:
    if tensors.kind("scale") in ("U8", "F8_E8M0") and tensors.kind("codes") in SMALL_FLOATS:
        return tensors.powers_of_two("scale")
    return tensors.floats("scale")


def _zeros(tensors: Tensors) -> NDArray[np.float32]:
    if tensors.kind("zero") in ("I8", "I32", "I64"):
        return tensors.codes("zero", "I8", "I32", "I64").astype(np.float32)
    return tensors.floats("zero", *WIDE, *SMALL_FLOATS)


def _as_grid(shape: tuple[int, ...], grid: _Grid) -> tuple[int, int]:
    """One number, or one for each part of the grid."""
    return (1, 1) if shape in ((), (1,), (1, 1)) else grid.sides


def _columns(tensors: Tensors, grid: _Grid) -> NDArray[np.int64] | None:
    """The group of each column; None where the file says, with -1, that they stand in their own order."""
    found = tensors.codes("groups", "I32", "I64").astype(np.int64)
    if (found == -1).all():
        return None
    if found.min() < 0 or found.max() >= grid.sides[1]:
        raise tensors.bad(f"g_idx names group {found.max()} (or {found.min()}) of {grid.sides[1]}")
    return found


def _apply(weight: Stored, scale: NDArray[np.float32], zero: NDArray[np.float32] | None, grid: _Grid) -> None:
    columns = weight.shape[1]
    for number, factors in enumerate(scale):
        rows = weight[number * grid.high : (number + 1) * grid.high]
        if zero is not None:
            rows -= np.repeat(zero[number], grid.wide)[:columns]
        rows *= np.repeat(factors, grid.wide)[:columns]


_SAID = frozenset(
    {"fp8", "fbgemm-fp8", "mxfp8", "modelopt", "modelopt-fp4", "compressed-tensors", "torchao", "quanto"}
)
METHODS = (Method("8-bit scales", _SAID, find, form, read),)
