"""BitNet: weights of -1, 0 and 1, four to a byte, and one scale.

    w = (q - 1) / weight_scale      for the class BitLinear of transformers
    w = (q - 1) * weight_scale      for AutoBitLinear, which most published models name

The rows are cut into four parts, and a byte holds one number of each, the first part lowest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import WIDE, Form, Method, Tensors, Weight, beside, modules
from toposcope.checkpoints.source import Stored

_PER_BYTE = 4


def find(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    if settings.method == "bitnet":
        for module in modules(names, ".weight_scale"):
            parts = beside(names, module, codes="weight", scale="weight_scale")
            if "codes" in parts:
                yield Weight(f"{module}.weight", parts)


def form(tensors: Tensors) -> Form:
    tensors.require_alone()
    if tensors.kind("codes") != "U8":
        wide = tensors.kind("codes") in WIDE
        why = "which the model rounds each time it runs" if wide else "and U8 was expected"
        raise tensors.bad(f"it is stored as {tensors.info('codes').dtype}, {why}")
    rows, columns = tensors.shape("codes", 2)
    tensors.require_shape("scale", (), (1,))
    return Form((_PER_BYTE * rows, columns), "ternary bitnet")


def read(tensors: Tensors, form: Form) -> Stored:
    stored = tensors.codes("codes", "U8")
    scale = np.float32(tensors.number("scale"))
    weight = np.empty(form.shape, dtype=np.float32)
    part = len(stored)
    for number in range(_PER_BYTE):
        weight[number * part : (number + 1) * part] = (stored >> (2 * number)) & 3
    if weight.max(initial=0) > 2:
        raise tensors.bad("it holds a code of 3, and 0, 1 and 2 were expected")
    weight -= 1
    if tensors.settings.text("linear_class") == "autobitlinear":
        weight *= scale
    elif scale > 0:
        weight /= scale
    else:
        raise tensors.bad(f"its scale is {scale}")
    return weight


METHODS = (Method("BitNet", frozenset({"bitnet"}), find, form, read),)
