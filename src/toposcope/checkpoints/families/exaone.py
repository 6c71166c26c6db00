"""EXAONE 4: no norm before attention, one after; full layers without position where the others slide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.decoder import SLIDING, decoder, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec
from toposcope.encodings import NONE


def describe_exaone4(config: Config, source: TensorSource) -> ModelSpec:
    """EXAONE 4: queries and keys normalised per head; without a window every layer rotates."""
    config = config.with_defaults(sliding_window=4096, sliding_window_pattern=4)
    eps = config.number("rms_norm_eps", default=1e-5)
    reach = window_reach(config)
    kinds = layer_kinds(config, (lambda index: False) if reach is None else _pattern(config))

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        slides = kinds[layer.index] == SLIDING
        return replace(
            layer,
            input_norm=None,
            output_norm=NormSpec.at("rms", f"{at}post_attention_layernorm", eps),
            q_norm=NormSpec.at("rms", f"{at}self_attn.q_norm", eps),
            k_norm=NormSpec.at("rms", f"{at}self_attn.k_norm", eps),
            encoding=layer.encoding if reach is None or slides else NONE,
            reach=reach if slides else None,
        )

    return decoder("exaone4", config, source, vary)


def _pattern(config: Config) -> Callable[[int], bool]:
    """Which layers slide: all but every n-th, or as spelled in letters ('LLLG', L for local)."""
    written = config["sliding_window_pattern"]
    if isinstance(written, str) and written:
        return lambda index: written[index % len(written)] == "L"
    return every(config.integer("sliding_window_pattern"))


FAMILIES = (Family("exaone4", ("exaone4",), describe_exaone4, "EXAONE 4: full layers without position"),)
