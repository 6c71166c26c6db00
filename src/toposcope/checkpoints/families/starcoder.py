"""StarCoder 2: the plain decoder with LayerNorm, biases everywhere, and perhaps one sliding window for all layers."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

STARCODER2 = Table(
    family="starcoder2",
    defaults={"num_key_value_heads": 2},
    norm="layer",
    eps_keys=("norm_epsilon",),
    eps=1e-5,
    windowed=True,
)

FAMILIES = (Family("starcoder2", ("starcoder2",), STARCODER2.describe, "StarCoder 2: LayerNorm and biases"),)
