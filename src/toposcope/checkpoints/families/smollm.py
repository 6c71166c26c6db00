"""SmolLM 3: Llama in which every fourth layer has no position."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes
from toposcope.checkpoints.families.decoder import SLIDING, decoder, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.encodings import NONE, rope_from_config


def describe_smollm3(config: Config, source: TensorSource) -> ModelSpec:
    """SmolLM 3: `no_rope_layers` holds, despite its name, a 1 for each layer that does rotate."""
    config = config.with_defaults(num_key_value_heads=4, no_rope_layer_interval=4)
    layers = config.integer("num_hidden_layers")
    rotates = config.listed("no_rope_layers", layers)
    if rotates is None:
        rotates = [every(config.integer("no_rope_layer_interval"))(i) for i in range(layers)]
    reach = window_reach(config) if config.flag("use_sliding_window", default=False) else None
    kinds = layer_kinds(config, lambda index: not rotates[index])
    encoding = rope_from_config(config, Sizes.of(config).head_dim, default_base=2e6)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(
            layer,
            encoding=encoding if rotates[layer.index] else NONE,
            reach=reach if kinds[layer.index] == SLIDING else None,
        )

    return decoder("smollm3", config, source, vary, encoding=encoding)


FAMILIES = (Family("smollm3", ("smollm3",), describe_smollm3, "SmolLM 3: every fourth layer without position"),)
