"""bitsandbytes: 4 bits (nf4, fp4) in blocks with their largest entry, or 8 bits with the largest entry of each row.

    4 bits:  w = table[q] * absmax[block]
    nested:  absmax = nested_map[code] * nested_absmax[block of blocks] + offset
    8 bits:  w = q * SCB[row] / 127

The first number of a pair stands in the high half of its byte.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import LONGEST_LIST, Form, Method, Tensors, Weight, beside, modules
from toposcope.checkpoints.source import Stored
from toposcope.core.errors import BadFile
from toposcope.core.untrusted import parse_json

_STATE = "weight.quant_state.bitsandbytes__"
# Quantiles of the normal distribution (QLoRA, appendix E), and a float of 2 + 1 bits divided by its largest.
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_HALF_FP4 = tuple(value / 12 for value in (0, 0.0625, 8, 12, 4, 6, 2, 3))
_TABLES = {"nf4": _NF4, "fp4": (*_HALF_FP4, *(-value for value in _HALF_FP4))}


@dataclass(frozen=True)
class _QuantState:
    kind: str
    block: int
    nested_block: int | None
    offset: float


def find_4bit(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for kind in _TABLES:
        for module in modules(names, f".{_STATE}{kind}"):
            parts = beside(
                names,
                module,
                codes="weight",
                state=f"{_STATE}{kind}",
                absmax="weight.absmax",
                table="weight.quant_map",
                nested="weight.nested_absmax",
                nested_table="weight.nested_quant_map",
            )
            yield Weight(f"{module}.weight", parts)


def _form_4bit(tensors: Tensors) -> Form:
    tensors.require_alone("codes", "absmax", "table")
    if tensors.kind("codes") != "U8":
        raise tensors.bad(
            f"its codes are stored as {tensors.info('codes').dtype} (bnb_4bit_quant_storage); expected U8"
        )
    try:
        said = parse_json(tensors.text("state"), "the quant_state", nodes=1000, finite=True)
    except BadFile as error:
        raise tensors.bad(f"its quant_state is no sound JSON ({error})") from error
    if not isinstance(said, Mapping):
        raise tensors.bad("its quant_state is no JSON object")
    shape, kind = _shape(tensors, said), said.get("quant_type")
    if kind not in _TABLES or not tensors.weight.parts["state"].endswith(f"__{kind}"):
        raise tensors.bad(f"its quant_type is {kind!r:.40}; expected {' or '.join(_TABLES)}")
    block = _block(tensors, said, "blocksize")
    count = math.prod(shape)
    if math.prod(tensors.shape("codes")) != -(-count // 2):
        raise tensors.bad(f"{math.prod(tensors.shape('codes')):,} bytes do not hold a weight of shape {shape}")
    blocks = -(-count // block)
    tensors.require_shape("absmax", (blocks,))
    tensors.require_shape("table", (16,))
    nested = None
    if tensors.kind("absmax") == "U8":
        if not (tensors.has("nested") and tensors.has("nested_table")):
            raise tensors.bad("its absmax are codes, and what they stand for is not there")
        nested = _block(tensors, said, "nested_blocksize")
        tensors.require_shape("nested", (-(-blocks // nested),))
        tensors.require_shape("nested_table", (256,))
    offset = said.get("nested_offset", 0.0)
    if not isinstance(offset, int | float) or (nested and "nested_offset" not in said):
        raise tensors.bad("its nested_offset is not there, or no number")
    return Form(shape, f"Q4 {kind} (blocks of {block})", _QuantState(kind, block, nested, float(offset)))


def _read_4bit(tensors: Tensors, form: Form) -> Stored:
    state: _QuantState = form.facts
    table = np.array(_TABLES[state.kind], dtype=np.float32)
    if np.abs(tensors.floats("table") - table).max() > 1e-6:
        raise tensors.bad(f"the table of its codes is not that of {state.kind}")
    count = math.prod(form.shape)
    pairs = tensors.codes("codes", "U8").reshape(-1)
    weight = np.empty(2 * len(pairs), dtype=np.float32)
    weight[::2] = table[pairs >> 4]
    weight[1::2] = table[pairs & 15]
    weight = weight[:count]
    absmax = _absmax(tensors, state)
    whole = count // state.block * state.block
    weight[:whole].reshape(-1, state.block)[...] *= absmax[: whole // state.block, None]
    weight[whole:] *= absmax[-1:]
    return weight.reshape(form.shape)


def _absmax(tensors: Tensors, state: _QuantState) -> NDArray[np.float32]:
    if state.nested_block is None:
        return tensors.floats("absmax")
    codes = tensors.codes("absmax", "U8")
    outer = np.repeat(tensors.floats("nested"), state.nested_block)[: len(codes)]
    return tensors.floats("nested_table")[codes] * outer + np.float32(state.offset)


def _shape(tensors: Tensors, said: Mapping[str, Any]) -> tuple[int, ...]:
    found = said.get("shape")
    sound = isinstance(found, list) and 0 < len(found) <= LONGEST_LIST
    if not sound or not all(type(size) is int and 0 < size < 1 << 40 for size in found):  # type: ignore[union-attr]
        raise tensors.bad(f"its shape is {found!r:.60}; expected a list of sizes")
    return tuple(found)  # type: ignore[arg-type]


def _block(tensors: Tensors, said: Mapping[str, Any], key: str) -> int:
    found = said.get(key)
    if type(found) is not int or not 0 < found < 1 << 40:
        raise tensors.bad(f"its {key} is {found!r:.40}; expected a positive integer")
    return found


def find_8bit(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for module in modules(names, ".SCB"):
        parts = beside(names, module, codes="weight", maxima="SCB", layout="weight_format")
        if "codes" in parts:
            yield Weight(f"{module}.weight", parts)


def _form_8bit(tensors: Tensors) -> Form:
    tensors.require_alone()
    if tensors.kind("codes") != "I8":
        raise tensors.bad(f"its codes are stored as {tensors.info('codes').dtype}; expected I8")
    rows, columns = tensors.shape("codes", 2)
    tensors.require_shape("maxima", (rows,))
    return Form((rows, columns), tensors.info("codes").dtype)


def _read_8bit(tensors: Tensors, form: Form) -> Stored:
    if tensors.has("layout") and tensors.integer("layout") != 0:
        raise tensors.bad(f"its rows are shuffled for a processor (weight_format {tensors.integer('layout')})")
    weight = tensors.codes("codes", "I8").astype(np.float32)
    weight *= (tensors.floats("maxima") / np.float32(127))[:, None]
    return weight


_SAID = frozenset({"bitsandbytes", "bitsandbytes-4bit", "bitsandbytes-8bit"})
METHODS = (
    Method("bitsandbytes", _SAID, find_4bit, _form_4bit, _read_4bit),
    Method("bitsandbytes", _SAID, find_8bit, _form_8bit, _read_8bit),
)
