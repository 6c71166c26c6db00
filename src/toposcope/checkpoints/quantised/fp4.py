"""4-bit floats (E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) with a scale for each group of 16 or 32.

    modelopt's NVFP4:  w = e2m1 * weight_scale[row, group of 16] * weight_scale_2
    gpt-oss's MXFP4:   w = e2m1 * 2^(scales[expert, row, group of 32] - 127), then inputs before outputs

The first number of a pair stands in the low half of its byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.quantised.settings import Settings
from toposcope.checkpoints.quantised.stored import Form, Method, Tensors, Weight, beside, modules
from toposcope.checkpoints.source import Stored

_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = np.array([*_HALF, *(-value for value in _HALF)], dtype=np.float32)
_NV_GROUP, _MX_GROUP = 16, 32


def grouped(pairs: NDArray[np.integer], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pairs of 4-bit floats (rows, columns / 2) times scales (rows, groups)."""
    rows, half = pairs.shape
    weight = np.empty((rows, 2 * half), dtype=np.float32)
    weight[:, ::2] = E2M1[pairs & 15]
    weight[:, 1::2] = E2M1[pairs >> 4]
    weight.reshape(*scale.shape, -1)[...] *= scale[..., None]
    return weight


def find_nvfp4(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for module in modules(names, ".weight_scale_2"):
        parts = beside(names, module, codes="weight", scale="weight_scale", whole="weight_scale_2")
        if "codes" in parts:
            yield Weight(f"{module}.weight", parts)


def _nvfp4_form(tensors: Tensors) -> Form:
    tensors.require_alone("scale")
    if tensors.kind("codes") != "U8" or tensors.kind("scale") != "F8_E4M3":
        stored = f"{tensors.info('codes').dtype} with scales of {tensors.info('scale').dtype}"
        raise tensors.bad(f"it is stored as {stored}; expected U8 with scales of F8_E4M3")
    rows, half = tensors.shape("codes", 2)
    if not half or 2 * half % _NV_GROUP:
        raise tensors.bad(f"its {2 * half} inputs are no groups of {_NV_GROUP}")
    said = tensors.settings.integer("group_size")
    if said not in (None, _NV_GROUP):
        raise tensors.bad(f"the configuration says groups of {said}; expected {_NV_GROUP}")
    tensors.require_shape("scale", (rows, 2 * half // _NV_GROUP))
    tensors.require_shape("whole", (), (1,))
    return Form((rows, 2 * half), "NVFP4")


def _nvfp4_read(tensors: Tensors, form: Form) -> Stored:
    scale = tensors.floats("scale", "F8_E4M3") * np.float32(tensors.number("whole"))
    return grouped(tensors.codes("codes", "U8"), scale)


def find_mxfp4(names: Collection[str], settings: Settings) -> Iterator[Weight]:
    for name in modules(names, "_blocks"):
        if f"{name}_scales" in names:
            yield Weight(name, {"codes": f"{name}_blocks", "scale": f"{name}_scales"})


def _mxfp4_form(tensors: Tensors) -> Form:
    *outer, rows, groups, half = tensors.shape("codes", 4)
    if 2 * half != _MX_GROUP or tensors.kind("codes") != "U8" or not (rows and groups):
        raise tensors.bad(f"its blocks have shape {tensors.shape('codes')} in {tensors.info('codes').dtype}")
    tensors.require_shape("scale", tensors.shape("codes")[:-1])
    return Form((*outer, groups * _MX_GROUP, rows), "MXFP4")


def _mxfp4_read(tensors: Tensors, form: Form) -> Stored:
    experts, inputs, rows = form.shape
    pairs = tensors.codes("codes", "U8").reshape(experts * rows, inputs // 2)
    scale = tensors.powers_of_two("scale").reshape(experts * rows, -1)
    return grouped(pairs, scale).reshape(experts, rows, inputs).swapaxes(1, 2)


METHODS = (
    Method("NVFP4", frozenset({"modelopt", "modelopt-fp4"}), find_nvfp4, _nvfp4_form, _nvfp4_read),
    Method("MXFP4", frozenset({"mxfp4"}), find_mxfp4, _mxfp4_form, _mxfp4_read),
)
