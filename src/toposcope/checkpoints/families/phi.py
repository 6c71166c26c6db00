"""Phi: a parallel block with LayerNorm and partial rotation; Phi 3: Llama with one fused projection and LongRoPE."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

# attention and feed-forward side by side after one LayerNorm, half of each head rotates
PHI = Table(
    family="phi",
    linear=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense"),
    norm="layer",
    eps_keys=("layer_norm_eps",),
    eps=1e-5,
    qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"),
    qk_norm_if=("qk_layernorm", False),
    rope={"default_partial": 0.5},
)
# the rotation may have a short and a long form
PHI3 = Table(
    family="phi3",
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
    },
    linear=("self_attn.qkv_proj", "self_attn.o_proj"),
    windowed=True,
    rope={"default_partial": 1.0},
)

FAMILIES = (
    Family("phi", ("phi",), PHI.describe, "Phi 1 and 2: parallel block, LayerNorm, partial rotation"),
    Family("phi3", ("phi3",), PHI3.describe, "Phi 3 and 4: fused projections, LongRoPE"),
)
