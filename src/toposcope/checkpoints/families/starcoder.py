"""StarCoder 2: the plain decoder with LayerNorm, biases everywhere, and perhaps a sliding window."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.decoder import decoder, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec


def describe_starcoder2(config: Config, source: TensorSource) -> ModelSpec:
    """StarCoder 2: one sliding window for all layers, where one is set."""
    config = config.with_defaults(num_key_value_heads=2)
    eps = config.number("norm_epsilon", default=1e-5)
    reach = window_reach(config)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(layer, input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps), reach=reach)

    return decoder("starcoder2", config, source, vary)


FAMILIES = (Family("starcoder2", ("starcoder2",), describe_starcoder2, "StarCoder 2: LayerNorm and biases"),)
