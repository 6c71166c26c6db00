"""MLX (and transformers' "metal"): integers in words of 32 bits, a scale and a bias for each group of inputs.

    w = scale[row, group] * q + bias[row, group]

Integers are a stream of bits along a row of words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import Form, Method, Tensors, Weight, beside, label, modules, unpacked
from toposcope.checkpoints.source import Stored

_BITS = (2, 4, 8)


def find(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for module in modules(names, ".scales"):
        parts = beside(names, module, codes="weight", scale="scales")
        parts |= beside(names, module, shift="qbiases") or beside(names, module, shift="biases")
        if "codes" in parts and "shift" in parts:
            yield Weight(f"{module}.weight", parts)


def form(tensors: Tensors) -> Form:
    tensors.require_alone()
    settings = tensors.settings
    if tensors.kind("codes") not in ("U32", "I32") or settings.text("mode") not in (None, "affine"):
        raise tensors.bad(f"it is stored as {tensors.info('codes').dtype}, mode {settings.text('mode') or 'affine'}")
    own = _own(settings, tensors.weight.name.removesuffix(".weight"))
    bits, size = own.integer("bits"), own.integer("group_size")
    if bits not in _BITS or size is None or size < 1:
        raise tensors.bad(f"the configuration says {bits} bits in groups of {size}; read are 2, 4 and 8 bits")
    rows, words = tensors.shape("codes", 2)
    columns = words * 32 // bits
    if columns % size:
        raise tensors.bad(f"its {columns} inputs are no groups of {size}")
    for role in ("scale", "shift"):
        tensors.require_shape(role, (rows, columns // size))
    return Form((rows, columns), label(bits, "mlx", size, columns), bits)


def read(tensors: Tensors, form: Form) -> Stored:
    rows, columns = form.shape
    weight = unpacked(tensors.words("codes"), form.facts, columns).astype(np.float32)
    scale, shift = tensors.floats("scale"), tensors.floats("shift")
    groups = weight.reshape(rows, scale.shape[1], -1)
    groups *= scale[..., None]
    groups += shift[..., None]
    return weight


def _own(settings: Settings, module: str) -> Settings:
    """The settings of one module, where the configuration lists it."""
    listed = settings.section(module)
    return Settings(settings.method, {**settings.values, **listed}, settings.dtype) if listed else settings


METHODS = (Method("MLX", frozenset({"mlx", "metal"}), find, form, read),)
