"""Phi: a parallel block with LayerNorm and partial rotation; Phi 3: Llama with one fused projection and LongRoPE."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes
from toposcope.checkpoints.families.decoder import decoder, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import rope_from_config


def describe_phi(config: Config, source: TensorSource) -> ModelSpec:
    """Phi 1 and 2: attention and feed-forward side by side after one LayerNorm, half of each head rotates."""
    eps = config.number("layer_norm_eps", default=1e-5)
    normed = config.flag("qk_layernorm", default=False)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(
            layer,
            o=Linear.at(f"{at}self_attn.dense"),
            input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps),
            q_norm=NormSpec.at("layer", f"{at}self_attn.q_layernorm", eps) if normed else None,
            k_norm=NormSpec.at("layer", f"{at}self_attn.k_layernorm", eps) if normed else None,
        )

    encoding = rope_from_config(config, Sizes.of(config).head_dim, default_partial=0.5)
    return decoder("phi", config, source, vary, encoding=encoding)


def describe_phi3(config: Config, source: TensorSource) -> ModelSpec:
    """Phi 3 and 4: queries, keys and values in one tensor, stacked; the rotation may have a short and a long form."""
    config = config.with_defaults(
        rms_norm_eps=1e-5, max_position_embeddings=4096, original_max_position_embeddings=4096
    )
    reach = window_reach(config)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(
            layer, q=None, k=None, v=None, qkv=Linear.at(f"{at}self_attn.qkv_proj"), layout="stacked", reach=reach
        )

    return decoder("phi3", config, source, vary, marker="self_attn.qkv_proj.weight")


FAMILIES = (
    Family("phi", ("phi",), describe_phi, "Phi 1 and 2: parallel block, LayerNorm, partial rotation"),
    Family("phi3", ("phi3",), describe_phi3, "Phi 3 and 4: fused projections, LongRoPE"),
)
