"""Llama, Mistral and their mixtures of experts: the plain decoder, with or without a sliding window."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes
from toposcope.checkpoints.families.decoder import SLIDING, decoder, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.encodings import rope_from_config


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Llama is the plain decoder itself."""
    return decoder("llama", config, source)


def describe_mistral(config: Config, source: TensorSource) -> ModelSpec:
    """Mistral: Llama with one sliding window for all layers."""
    config = config.with_defaults(sliding_window=4096, num_key_value_heads=8)
    reach = window_reach(config)
    return decoder("mistral", config, source, lambda layer, at: replace(layer, reach=reach))


def describe_mixtral(config: Config, source: TensorSource) -> ModelSpec:
    """Mixtral: Mistral's attention, no window unless one is set."""
    config = config.with_defaults(sliding_window=None, num_key_value_heads=8, rms_norm_eps=1e-5)
    reach = window_reach(config)
    encoding = rope_from_config(config, Sizes.of(config).head_dim, default_base=1e6)
    return decoder("mixtral", config, source, lambda layer, at: replace(layer, reach=reach), encoding=encoding)


def describe_ministral(config: Config, source: TensorSource) -> ModelSpec:
    """Ministral: Mistral with a sliding window on the layers listed so, on all where none are listed."""
    config = config.with_defaults(sliding_window=4096, num_key_value_heads=8)
    reach = window_reach(config)
    kinds = layer_kinds(config, lambda index: reach is not None)
    return decoder(
        "ministral",
        config,
        source,
        lambda layer, at: replace(layer, reach=reach if kinds[layer.index] == SLIDING else None),
    )


FAMILIES = (
    Family("llama", ("llama",), describe, "Llama 1-3 and models built like it"),
    Family("mistral", ("mistral",), describe_mistral, "Mistral: Llama with a sliding window"),
    Family("mixtral", ("mixtral",), describe_mixtral, "Mixtral: Mistral with a mixture of experts"),
    Family("ministral", ("ministral",), describe_ministral, "Ministral: a sliding window on some layers"),
)
