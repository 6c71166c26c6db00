"""How far stored weights may be from those that were trained, by the type they are stored in.

Floating types: the unit roundoff, the largest relative error of one number. Quantised types of b bits: 1.4 * 2^-b,
which is what rounding Gaussian weights with block formats gives in the Frobenius norm (measured: 0.086 for Q4_0,
0.078 for Q4_1, 0.043 for Q5_0, 0.0054 for Q8_0): an estimate, not a bound. Ternary types lose most of the weights.
"""

from __future__ import annotations

import re

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
    "I8": 1.4 * 2.0**-8,
    "int8": 1.4 * 2.0**-8,
}
_BITS = re.compile(r"^I?Q(\d)")
_WORST = 1.0


def storage_error(dtype: str) -> float:
    """The relative error that storing weights as `dtype` may have caused; 1 where nothing is known."""
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    bits = _BITS.match(dtype)
    return 1.4 * 2.0 ** -int(bits[1]) if bits else _WORST


def layer_storage_error(model: Model, layer: Layer) -> float:
    """The largest storage error among the tensors that make V and O."""
    spec = layer.spec
    latent = None if spec.kv_latent is None else spec.kv_latent.down.weight
    linears = [part.weight for part in (spec.v, spec.o, spec.qkv, spec.kv_up) if part is not None]
    names = [name for name in (*linears, latent, spec.v_up) if name is not None]
    return max(storage_error(model.source.info(name).dtype) for name in names)
