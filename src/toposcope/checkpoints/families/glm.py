"""GLM 4: half of each head rotates, neighbours paired; the models of April 2025 (0414) add a norm after attention."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

GLM = Table(
    family="glm",
    defaults={"num_key_value_heads": 2, "head_dim": 128},
    eps=1.5625e-07,
    rope={"pairing": "interleaved", "default_partial": 0.5},
)
GLM4 = replace(GLM, family="glm4", output_norm="post_self_attn_layernorm")
# perhaps with norms of queries and keys; here halves are paired
GLM4_MOE = Table(
    family="glm4_moe",
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    qk_norm_if=("use_qk_norm", False),
    rope={"default_partial": 0.5},
)

FAMILIES = (
    Family("glm", ("glm",), GLM.describe, "GLM 4: half of each head rotates, neighbours paired"),
    Family("glm4", ("glm4",), GLM4.describe, "GLM 4 (0414): the same with a norm after attention"),
    Family("glm4_moe", ("glm4_moe",), GLM4_MOE.describe, "GLM 4.5 to 4.7: half of each head rotates, halves paired"),
)
