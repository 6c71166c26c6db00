"""Command models by Cohere: parallel blocks, LayerNorm, neighbours paired; some layers may have no position."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes
from toposcope.checkpoints.families.decoder import SLIDING, decoder, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec
from toposcope.encodings import NONE, rope_from_config


def describe_cohere(config: Config, source: TensorSource) -> ModelSpec:
    """Command R: perhaps with LayerNorm on queries and keys, a gain for each channel of each head."""
    eps = config.number("layer_norm_eps", default=1e-5)
    normed = config.flag("use_qk_norm", default=False)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(
            layer,
            input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps),
            q_norm=NormSpec.at("layer", f"{at}self_attn.q_norm", eps) if normed else None,
            k_norm=NormSpec.at("layer", f"{at}self_attn.k_norm", eps) if normed else None,
        )

    encoding = rope_from_config(config, Sizes.of(config).head_dim, pairing="interleaved", default_base=5e5)
    return decoder("cohere", config, source, vary, encoding=encoding)


def describe_cohere2(config: Config, source: TensorSource) -> ModelSpec:
    """Command R7B and A: sliding layers rotate, full layers have no position at all."""
    config = config.with_defaults(sliding_window=4096, sliding_window_pattern=4)
    eps = config.number("layer_norm_eps", default=1e-5)
    reach = window_reach(config)
    kinds = layer_kinds(config, every(config.integer("sliding_window_pattern")))
    encoding = rope_from_config(config, Sizes.of(config).head_dim, pairing="interleaved")

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        slides = kinds[layer.index] == SLIDING and reach is not None
        return replace(
            layer,
            input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps),
            encoding=encoding if slides else NONE,
            reach=reach if slides else None,
        )

    return decoder("cohere2", config, source, vary, encoding=encoding)


FAMILIES = (
    Family("cohere", ("cohere",), describe_cohere, "Command R: LayerNorm, neighbours paired"),
    Family("cohere2", ("cohere2",), describe_cohere2, "Command R7B and A: full layers without position"),
)
