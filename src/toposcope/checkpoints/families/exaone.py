"""EXAONE 4: no norm before attention, one after; full layers without position where the others slide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import SLIDING, Table, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.encodings import NONE

EXAONE4 = Table(
    family="exaone4",
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    eps=1e-5,
    input_norm=None,
    output_norm="post_attention_layernorm",
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
)


def describe_exaone4(config: Config, source: TensorSource) -> ModelSpec:
    """EXAONE 4: queries and keys normalised per head; without a window every layer rotates."""
    draft = EXAONE4.draft(config, source)
    reach = window_reach(draft.config)
    kinds = layer_kinds(draft.config, (lambda index: False) if reach is None else _pattern(draft.config))

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        slides = kinds[layer.index] == SLIDING
        return replace(
            layer,
            encoding=layer.encoding if reach is None or slides else NONE,
            reach=reach if slides else None,
        )

    return draft.spec(draft.rope(), vary)


def _pattern(config: Config) -> Callable[[int], bool]:
    """Which layers slide: all but every n-th, or as spelled in letters ('LLLG', L for local)."""
    written = config["sliding_window_pattern"]
    if isinstance(written, str) and written:
        return lambda index: written[index % len(written)] == "L"
    return every(config.integer("sliding_window_pattern"))


FAMILIES = (Family("exaone4", ("exaone4",), describe_exaone4, "EXAONE 4: full layers without position"),)
