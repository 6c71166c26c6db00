"""Persimmon: fused projections head by head, LayerNorm on queries and keys, half of each head rotating."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

PERSIMMON = Table(
    family="persimmon",
    linear=("self_attn.query_key_value", "self_attn.dense"),
    layout="per_head",
    norm="layer",
    eps_keys=("layer_norm_eps",),
    eps=1e-5,
    qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"),
    qk_norm_if=("qk_layernorm", True),
    rope={"default_partial": 0.5},
)

FAMILIES = (Family("persimmon", ("persimmon",), PERSIMMON.describe, "Persimmon: fused projections, normed heads"),)
