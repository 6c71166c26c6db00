"""How far stored weights may be from those that were trained, by the type they are stored in.

Floating types: the unit roundoff, the largest relative error of one number. Quantised types of b bits: 1.4 * 2^-b,
which is what rounding Gaussian weights with block formats gives in the Frobenius norm (measured: 0.086 for Q4_0,
0.078 for Q4_1, 0.043 for Q5_0, 0.0054 for Q8_0): an estimate, not a bound. Ternary types lose most of the weights.
Integers of b bits between the extremes of g numbers (GPTQ, AWQ, HQQ, ...): a step is the expected range of g normal
numbers over 2^b - 1, and rounding to it loses the step over sqrt(12). Measured for the tables of 4-bit floats.
"""

from __future__ import annotations

import math
import re
from statistics import NormalDist

from toposcope.checkpoints.view import Layer, Model

_FLOATS = {
    "F64": 2.0**-53,
    "float64": 2.0**-53,
    "F32": 2.0**-24,
    "float32": 2.0**-24,
    "F16": 2.0**-11,
    "float16": 2.0**-11,
    "BF16": 2.0**-8,
    "bfloat16": 2.0**-8,
    "F8_E4M3": 2.0**-4,
    "float8_e4m3fn": 2.0**-4,
    "F8_E5M2": 2.0**-3,
    "float8_e5m2": 2.0**-3,
    "MXFP4": 0.115,
    "NVFP4": 0.095,
    "I8": 1.4 * 2.0**-8,
    "int8": 1.4 * 2.0**-8,
}
_FOUR_BIT_FLOATS = {"nf4": 0.092, "fp4": 0.122}  # in blocks of 64
_GROUPS = re.compile(r"^Q(?P<bits>\d) (?P<method>[\w-]+) \((?:rows|\w+ of (?P<size>\d{1,9}))\)$")
_LONG_ROW = 4096
_BITS = re.compile(r"^I?Q(\d)")
_WORST = 1.0


def storage_error(dtype: str) -> float:
    """The relative error that storing weights as `dtype` may have caused; 1 where nothing is known."""
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    groups = _GROUPS.match(dtype)
    if groups:
        return _FOUR_BIT_FLOATS.get(groups["method"]) or _in_groups(int(groups["bits"]), groups["size"])
    bits = _BITS.match(dtype)
    return 1.4 * 2.0 ** -int(bits[1]) if bits else _WORST


def _in_groups(bits: int, size: str | None) -> float:
    """Rounding normal numbers to 2^bits levels between the extremes of each group (Blom's expected range)."""
    count = max(2, int(size or _LONG_ROW))
    extent = 2 * NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
    return min(_WORST, extent / (2**bits - 1) / math.sqrt(12))


def layer_storage_error(model: Model, layer: Layer) -> float:
    """The largest storage error among the tensors that make V and O."""
    spec = layer.spec
    latent = None if spec.kv_latent is None else spec.kv_latent.down.weight
    linears = [part.weight for part in (spec.v, spec.o, spec.qkv, spec.kv_up) if part is not None]
    names = [name for name in (*linears, latent, spec.v_up) if name is not None]
    return max(storage_error(model.source.info(name).dtype) for name in names)
