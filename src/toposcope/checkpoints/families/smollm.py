"""SmolLM 3: Llama in which every fourth layer has no position."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table, every, window_reach, windows
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.encodings import NONE

SMOLLM3 = Table(
    family="smollm3",
    defaults={"num_key_value_heads": 4, "no_rope_layer_interval": 4},
    rope={"default_base": 2e6},
)


def describe_smollm3(config: Config, source: TensorSource) -> ModelSpec:
    """SmolLM 3: `no_rope_layers` holds, despite its name, a 1 for each layer that does rotate."""
    draft = SMOLLM3.draft(config, source)
    config, layers = draft.config, draft.sizes.layers
    rotates = config.listed("no_rope_layers", layers)
    if rotates is None:
        rotates = [every(config.integer("no_rope_layer_interval"))(i) for i in range(layers)]
    reach = window_reach(config) if config.flag("use_sliding_window", default=False) else None
    windowed = windows(config, lambda index: not rotates[index], reach)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(windowed(layer, at), encoding=layer.encoding if rotates[layer.index] else NONE)

    return draft.spec(draft.rope(), vary)


FAMILIES = (Family("smollm3", ("smollm3",), describe_smollm3, "SmolLM 3: every fourth layer without position"),)
