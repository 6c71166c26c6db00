"""Qwen 2 and 3: biased projections or per-head norms of queries and keys, and a sliding window on some layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.decoder import SLIDING, Variation, decoder, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec, NormSpec

WINDOWS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}


def describe_qwen2(config: Config, source: TensorSource) -> ModelSpec:
    """Qwen 2 and 2.5: Llama with biases on queries, keys and values; the upper layers may slide."""
    config = config.with_defaults(num_key_value_heads=32, **WINDOWS)
    return decoder("qwen2", config, source, _windows(config, _upper(config)))


def describe_qwen2_moe(config: Config, source: TensorSource) -> ModelSpec:
    """Qwen 1.5 and 2 mixtures: as Qwen 2, but of the lower layers every other one may slide."""
    config = config.with_defaults(num_key_value_heads=16, **WINDOWS)
    lower = config.integer("max_window_layers", least=0)
    return decoder("qwen2_moe", config, source, _windows(config, lambda i: i % 2 == 0 and i < lower))


def describe_qwen3(config: Config, source: TensorSource) -> ModelSpec:
    """Qwen 3: no biases, and each head's query and key is normalised before it turns."""
    config = config.with_defaults(head_dim=128, num_key_value_heads=32, **WINDOWS)
    return decoder("qwen3", config, source, _normed(config, _windows(config, _upper(config))))


def describe_qwen3_moe(config: Config, source: TensorSource) -> ModelSpec:
    """Qwen 3 mixtures: as Qwen 3, the window on all layers or on none."""
    config = config.with_defaults(num_key_value_heads=4, **WINDOWS)
    return decoder("qwen3_moe", config, source, _normed(config, _windows(config, lambda i: True)))


def _upper(config: Config) -> Callable[[int], bool]:
    first = config.integer("max_window_layers", least=0)
    return lambda index: index >= first


def _windows(config: Config, sliding: Callable[[int], bool]) -> Variation:
    reach = window_reach(config) if config.flag("use_sliding_window", default=False) else None
    kinds = layer_kinds(config, sliding)
    return lambda layer, at: replace(layer, reach=reach if kinds[layer.index] == SLIDING else None)


def _normed(config: Config, vary: Variation) -> Variation:
    eps = config.number("rms_norm_eps", default=1e-6)
    return lambda layer, at: replace(
        vary(layer, at),
        q_norm=NormSpec.at("rms", f"{at}self_attn.q_norm", eps),
        k_norm=NormSpec.at("rms", f"{at}self_attn.k_norm", eps),
    )


FAMILIES = (
    Family("qwen2", ("qwen2",), describe_qwen2, "Qwen 2 and 2.5: biased projections, windows on the upper layers"),
    Family("qwen2_moe", ("qwen2_moe",), describe_qwen2_moe, "Qwen 1.5 and 2 mixtures of experts"),
    Family("qwen3", ("qwen3",), describe_qwen3, "Qwen 3: queries and keys normalised per head"),
    Family("qwen3_moe", ("qwen3_moe",), describe_qwen3_moe, "Qwen 3 mixtures of experts"),
)
