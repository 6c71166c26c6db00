"""Phi: a parallel block with LayerNorm and partial rotation; Phi 3: Llama with one fused projection and LongRoPE."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.core.errors import BadConfig

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
PHI4_MULTIMODAL = replace(
    PHI3,
    family="phi4_multimodal",
    defaults={**PHI3.defaults, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
)
# mixtures of experts: Llama with LayerNorm
PHIMOE = Table(
    family="phimoe",
    defaults={"num_key_value_heads": 8, "max_position_embeddings": 131_072},
    norm="layer",
    eps=1e-5,
    windowed=True,
    rope={"default_base": 1e6},
)


def describe_phimoe(config: Config, source: TensorSource) -> ModelSpec:
    """Phi 3.5 MoE: its LongRoPE names the factor on rotated vectors itself, and never uses the long form."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    settings = dict(config.part(key))
    if settings.get("short_mscale") is not None:
        short, long = settings["short_mscale"], settings.get("long_mscale")
        if short != long:
            raise BadConfig(
                f"short_mscale ({short!r}) and long_mscale ({long!r}) in {config.where} differ: a factor that "
                "depends on the length of the text has no table here."
            )
        config = config.updated(
            **{key: {**settings, "attention_factor": short, "long_factor": settings.get("short_factor")}}
        )
    draft = PHIMOE.draft(config, source)
    return draft.spec(draft.rope())


FAMILIES = (
    Family("phi", ("phi",), PHI.describe, "Phi 1 and 2: parallel block, LayerNorm, partial rotation"),
    Family("phi3", ("phi3",), PHI3.describe, "Phi 3 and 4: fused projections, LongRoPE"),
    Family(
        "phi4_multimodal", ("phi4_multimodal",), PHI4_MULTIMODAL.describe, "Phi 4 (the text part): Phi 3 with groups"
    ),
    Family("phimoe", ("phimoe",), describe_phimoe, "Phi 3.5 MoE: LayerNorm, separate projections"),
)
