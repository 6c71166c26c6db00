"""HQQ: integers of 1 to 8 bits, a scale and a zero point (no integer) for each group along either axis.

    w = (q - zero) * scale,     as a matrix (groups, group size) for axis 1, (group size, groups) for axis 0

The rows of that matrix are cut into equal parts, and a byte (3 bits: a word of 32 bits) holds one number of each,
the first part highest. All that describes a weight is stored as tensors of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import Form, Method, Tensors, Weight, beside, label, modules
from toposcope.checkpoints.source import Stored

# Numbers in one stored integer, and the bits that each takes there.
_PACKINGS = {"8bit_u8": (1, 8), "4bit_u8": (2, 4), "3bit_32": (10, 3), "2bit_u8": (4, 2), "1bit_u8": (8, 1)}
_BITS = {8: "8bit_u8", 6: "8bit_u8", 5: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1: "1bit_u8"}
_UNUSED = frozenset(
    {
        *("unpack_view_dtype", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config"),
        *("channel_wise", "optimize", "round_zero"),
    }
)


@dataclass(frozen=True)
class _Matrix:
    packing: str
    rows: int
    columns: int


def find(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for module in modules(names, ".W_q"):
        parts = beside(
            names,
            module,
            codes="W_q",
            scale="scale",
            zero="zero",
            bits="nbits",
            size="group_size",
            shape="shape",
            axis="axis",
            packing="packing",
            as_float="view_as_float",
            quant_scale="quant_scale",
            quant_zero="quant_zero",
        )
        yield Weight(f"{module}.weight", parts)


def form(tensors: Tensors) -> Form:
    tensors.require_alone("scale", "zero", "bits", "shape", "axis", "packing")
    for role in ("as_float", "quant_scale", "quant_zero"):
        if tensors.has(role) and tensors.number(role) != 0:
            raise tensors.bad(
                f"it is stored with '{tensors.weight.parts[role].rpartition('.')[2]}', which is not read"
            )
    shape, bits, axis = tensors.sizes("shape"), tensors.integer("bits"), tensors.integer("axis")
    packing = tensors.text("packing")
    if len(shape) != 2 or _BITS.get(bits) != packing or axis not in (0, 1):
        raise tensors.bad(f"{bits} bits in the packing '{packing:.20}' along axis {axis} of {shape} are not read")
    count = math.prod(shape)
    size = tensors.integer("size") if tensors.has("size") else shape[axis]
    if size < 1 or count % size:
        raise tensors.bad(f"{count:,} numbers are no groups of {size}")
    rows, columns = (size, count // size) if axis == 0 else (count // size, size)
    per, _ = _PACKINGS[packing]
    tensors.require_shape("codes", (-(-rows // per), columns))
    if per > 1 and packing != "3bit_32" and rows % per:
        raise tensors.bad(f"{rows} rows do not fill bytes of {per} numbers")
    one_each = (1, columns) if axis == 0 else (rows, 1)
    for role in ("scale", "zero"):
        tensors.require_shape(role, one_each)
    return Form(shape, label(bits, "hqq", size, count), _Matrix(packing, rows, columns))


def read(tensors: Tensors, form: Form) -> Stored:
    matrix: _Matrix = form.facts
    stored = tensors.codes("codes", *(("I32",) if matrix.packing == "3bit_32" else ("U8",)))
    weight = _unpacked(stored, matrix)
    weight -= tensors.floats("zero")
    weight *= tensors.floats("scale")
    return weight.reshape(form.shape)


def _unpacked(stored: NDArray[np.integer], matrix: _Matrix) -> NDArray[np.float32]:
    per, bits = _PACKINGS[matrix.packing]
    part = len(stored)
    found = np.empty((per * part, matrix.columns), dtype=np.float32)
    for number in range(per):
        found[number * part : (number + 1) * part] = (stored >> (bits * (per - 1 - number))) & ((1 << bits) - 1)
    return found[: matrix.rows]


METHODS = (Method("HQQ", frozenset({"hqq"}), find, form, read, aside=_UNUSED),)
