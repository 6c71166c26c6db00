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

FAMILIES = (
    Family("glm", ("glm",), GLM.describe, "GLM 4: half of each head rotates, neighbours paired"),
    Family("glm4", ("glm4",), GLM4.describe, "GLM 4 (0414): the same with a norm after attention"),
)
