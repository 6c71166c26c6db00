"""OLMo 1-3: LayerNorm without parameters at first, then norms of queries, keys and attention's output alone."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes
from toposcope.checkpoints.families.decoder import (
    SLIDING,
    Variation,
    decoder,
    every,
    layer_kinds,
    window_reach,
)
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec
from toposcope.encodings import Encoding, rope_from_config


def describe_olmo(config: Config, source: TensorSource) -> ModelSpec:
    """OLMo 1: Llama with a LayerNorm that has neither gain nor bias, and perhaps clipped projections."""
    warnings: tuple[str, ...] = ()
    if config.get("clip_qkv") is not None:
        limit = config.number("clip_qkv")
        warnings = (f"queries, keys and values are clipped to {limit:g} from zero, which is left out here",)
    norm = NormSpec("layer", 1e-5)  # fixed by the architecture, whatever the configuration says
    return decoder("olmo", config, source, lambda layer, at: replace(layer, input_norm=norm, warnings=warnings))


def describe_olmo2(config: Config, source: TensorSource) -> ModelSpec:
    """OLMo 2: nothing before attention; one norm over all queries, one over all keys, one on what attention adds."""
    return decoder("olmo2", config, source, _reordered(config))


def describe_olmo3(config: Config, source: TensorSource) -> ModelSpec:
    """OLMo 3: OLMo 2 with three sliding layers to each full one; only the full ones stretch their rotation."""
    config = config.with_defaults(sliding_window=4096)
    reach, kinds, reordered = window_reach(config), layer_kinds(config, every(4)), _reordered(config)
    encodings = {kind: _olmo3_rope(config, kind) for kind in set(kinds)}

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        kind = kinds[layer.index]
        return replace(reordered(layer, at), encoding=encodings[kind], reach=reach if kind == SLIDING else None)

    return decoder("olmo3", config, source, vary, encoding=encodings[kinds[0]])


def _reordered(config: Config) -> Variation:
    eps = config.number("rms_norm_eps", default=1e-5)
    return lambda layer, at: replace(
        layer,
        input_norm=None,
        output_norm=NormSpec.at("rms", f"{at}post_attention_layernorm", eps),
        q_norm=NormSpec.at("rms", f"{at}self_attn.q_norm", eps),
        k_norm=NormSpec.at("rms", f"{at}self_attn.k_norm", eps),
        qk_norm_over="layer",
    )


def _olmo3_rope(config: Config, kind: str) -> Encoding:
    if kind == SLIDING:
        config = config.updated(rope_scaling=None)  # the older generation's scaling is for the full layers alone
    return rope_from_config(config, Sizes.of(config).head_dim, layer_type=kind, default_base=5e5)


FAMILIES = (
    Family("olmo", ("olmo",), describe_olmo, "OLMo 1: LayerNorm without parameters"),
    Family(
        "olmo2", ("olmo2",), describe_olmo2, "OLMo 2: a norm after attention, none before; normed queries and keys"
    ),
    Family("olmo3", ("olmo3",), describe_olmo3, "OLMo 3: OLMo 2 with sliding windows"),
)
