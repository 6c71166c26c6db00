"""StableLM: LayerNorm, a quarter of each head rotating; the largest norms queries and keys, a tensor per head."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

STABLELM = Table(
    family="stablelm",
    norm="layer",
    eps_keys=("layer_norm_eps",),
    eps=1e-5,
    qk_norm=("self_attn.q_layernorm.norms.{head}", "self_attn.k_layernorm.norms.{head}"),
    qk_norm_if=("qk_layernorm", False),
    rope={"default_partial": 0.25},
)

FAMILIES = (Family("stablelm", ("stablelm",), STABLELM.describe, "StableLM 1 and 2: LayerNorm, partial rotation"),)
