"""compressed-tensors' packed weights: integers of 1 to 8 bits, or 4-bit floats.

    integers:  w = scale[row, group] * (q - 2^(bits - 1) - zero)
    nvfp4:     w = e2m1 * scale[row, group of 16] / global scale
    mxfp4:     w = e2m1 * 2^(exponent[row, group of 32] - 127)

Integers are a stream of bits along a row of 32-bit words. Zero points are packed the same way, down a column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.quantised.fp4 import grouped
from toposcope.checkpoints.quantised.schemes import Scheme, scheme_of
from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import (
    Form,
    Method,
    Tensors,
    Weight,
    beside,
    in_groups,
    label,
    modules,
    unpacked,
)
from toposcope.checkpoints.source import Stored


@dataclass(frozen=True)
class _Integers:
    scheme: Scheme
    sides: tuple[int, int]  # of the scales


def find(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for module in modules(names, ".weight_packed"):
        parts = beside(
            names,
            module,
            codes="weight_packed",
            scale="weight_scale",
            shape="weight_shape",
            zero="weight_zero_point",
            groups="weight_g_idx",
            whole="weight_global_scale",
        )
        yield Weight(f"{module}.weight", parts)


def form(tensors: Tensors) -> Form:
    tensors.require_alone("scale")
    if tensors.settings.method is None:
        raise tensors.bad("no config.json beside it says how; put that of the model into its directory")
    scheme = scheme_of(tensors.settings, tensors.weight.name.removesuffix(".weight"))
    return _floats_form(tensors, scheme) if scheme.floating else _integers_form(tensors, scheme)


def _integers_form(tensors: Tensors, scheme: Scheme) -> Form:
    if not tensors.has("shape"):
        raise tensors.bad("its weight_shape is not there")
    bits, (rows, words) = scheme.bits, tensors.shape("codes", 2)
    scale = tensors.shape("scale")
    if scale in ((), (1,), (1, 1), (rows,), (rows, 1)) and scheme.strategy != "group":
        sides, columns = (rows, 1), 32 * words // bits
        grouped_by = columns
    else:
        grouped_by = scheme.group_size or 0
        sides = (rows, tensors.shape("scale", 2)[1])
        columns = sides[1] * grouped_by
        if scale != sides or not columns or words != -(-columns * bits // 32):
            raise tensors.bad(
                f"{words} words and {scale} scales do not make rows of {bits} bits in groups of {grouped_by}"
            )
    if 32 % bits and words == -(-columns // (32 // bits)) and words > 1:
        raise tensors.bad(f"its {columns} numbers of {bits} bits may be packed in two ways")
    if scheme.symmetric and tensors.has("zero"):
        raise tensors.bad("it has zero points, though the configuration calls it symmetric")
    if not scheme.symmetric and not tensors.has("zero"):
        raise tensors.bad("its zero points are not there")
    if tensors.has("zero"):
        tensors.require_shape("zero", (-(-rows * bits // 32), sides[1]))
    if tensors.has("groups"):
        tensors.require_shape("groups", (columns,))
    return Form((rows, columns), label(bits, "compressed-tensors", grouped_by, columns), _Integers(scheme, sides))


def _floats_form(tensors: Tensors, scheme: Scheme) -> Form:
    if scheme.bits != 4 or scheme.group_size not in (16, 32):
        raise tensors.bad(f"floats of {scheme.bits} bits in groups of {scheme.group_size} are not read")
    rows, half = tensors.shape("codes", 2)
    if tensors.kind("codes") != "U8" or 2 * half % scheme.group_size:
        raise tensors.bad(f"its {half} columns of {tensors.info('codes').dtype} do not hold groups of 4-bit floats")
    tensors.require_shape("scale", (rows, 2 * half // scheme.group_size))
    if scheme.group_size == 16:
        if not tensors.has("whole"):
            raise tensors.bad("its global scale is not there")
        tensors.require_shape("whole", (), (1,))
    elif tensors.has("whole"):
        raise tensors.bad("it has a global scale, as groups of 16 have and groups of 32 have not")
    return Form((rows, 2 * half), "NVFP4" if scheme.group_size == 16 else "MXFP4", scheme)


def read(tensors: Tensors, form: Form) -> Stored:
    if isinstance(form.facts, Scheme):
        return _read_floats(tensors, form.facts)
    scheme, sides = form.facts.scheme, form.facts.sides
    rows, columns = form.shape
    if tensors.sizes("shape") != form.shape:
        raise tensors.bad(f"its weight_shape is {tensors.sizes('shape')} and its tensors make {form.shape}")
    weight = unpacked(tensors.words("codes"), scheme.bits, columns).astype(np.float32)
    middle = np.float32(1 << (scheme.bits - 1))
    scale = np.broadcast_to(tensors.floats("scale").reshape(-1, sides[1]), sides)
    if tensors.has("zero"):
        words = np.ascontiguousarray(tensors.words("zero").T)
        zero = unpacked(words, scheme.bits, rows).T.astype(np.float32)  # q - middle - (z - middle)
    else:
        zero = np.full(sides, middle)
    group = _groups(tensors, scheme, sides[1], columns)
    return in_groups(weight, scale, zero, group)


def _groups(tensors: Tensors, scheme: Scheme, count: int, columns: int) -> NDArray[np.int64]:
    plain = np.arange(columns) // (scheme.group_size or columns) if count > 1 else np.zeros(columns, np.int64)
    if not tensors.has("groups"):
        return plain
    found = tensors.codes("groups", "I32", "I64").astype(np.int64)
    if (found == -1).all():
        return plain
    if found.min() < 0 or found.max() >= count:
        raise tensors.bad(f"g_idx names group {found.max()} (or {found.min()}) of {count}")
    return found


def _read_floats(tensors: Tensors, scheme: Scheme) -> Stored:
    codes = tensors.codes("codes", "U8")
    if scheme.group_size == 32:
        return grouped(codes, tensors.powers_of_two("scale"))
    whole = np.float32(tensors.number("whole"))
    if not whole > 0:
        raise tensors.bad(f"its global scale is {whole}")
    return grouped(codes, tensors.floats("scale", "F8_E4M3", "F16", "BF16", "F32") / whole)


METHODS = (Method("compressed-tensors", frozenset({"compressed-tensors"}), find, form, read),)
