"""Persimmon: fused projections head by head, LayerNorm on queries and keys, half of each head rotating."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes
from toposcope.checkpoints.families.decoder import decoder
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import rope_from_config


def describe_persimmon(config: Config, source: TensorSource) -> ModelSpec:
    """Persimmon 8B."""
    eps = config.number("layer_norm_eps", default=1e-5)
    normed = config.flag("qk_layernorm", default=True)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(
            layer,
            q=None,
            k=None,
            v=None,
            qkv=Linear.at(f"{at}self_attn.query_key_value"),
            layout="per_head",
            o=Linear.at(f"{at}self_attn.dense"),
            input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps),
            q_norm=NormSpec.at("layer", f"{at}self_attn.q_layernorm", eps) if normed else None,
            k_norm=NormSpec.at("layer", f"{at}self_attn.k_layernorm", eps) if normed else None,
        )

    encoding = rope_from_config(config, Sizes.of(config).head_dim, default_partial=0.5)
    return decoder("persimmon", config, source, vary, encoding=encoding, marker="self_attn.query_key_value.weight")


FAMILIES = (Family("persimmon", ("persimmon",), describe_persimmon, "Persimmon: fused projections, normed heads"),)
