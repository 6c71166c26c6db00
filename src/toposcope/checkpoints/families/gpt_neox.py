"""GPT-NeoX and Pythia: one fused projection sorted by head, rotary positions on a part of each head.

Attention reads norm(x) whether the MLP stands beside it (parallel residual) or after it.
"""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

GPT_NEOX = Table(
    family="gpt_neox",
    defaults={"num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64},
    grouped=False,
    eps_keys=("layer_norm_eps",),
    eps=1e-5,
    rope={"default_partial": 0.25},
    linear=("attention.query_key_value", "attention.dense"),
    layout="per_head",
    norm="layer",
    embedding="embed_in",
)

FAMILIES = (Family("gpt_neox", ("gpt_neox",), GPT_NEOX.describe, "GPT-NeoX and Pythia"),)
