"""Command models by Cohere: parallel blocks, LayerNorm, neighbours paired; some layers may have no position."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import SLIDING, Table, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.encodings import NONE

# perhaps with LayerNorm on queries and keys, a gain for each channel of each head
COHERE = Table(
    family="cohere",
    norm="layer",
    eps_keys=("layer_norm_eps",),
    eps=1e-5,
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    qk_norm_if=("use_qk_norm", False),
    rope={"pairing": "interleaved", "default_base": 5e5},
)
COHERE2 = replace(
    COHERE,
    family="cohere2",
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    qk_norm=None,
    rope={"pairing": "interleaved"},
)


def describe_cohere2(config: Config, source: TensorSource) -> ModelSpec:
    """Command R7B and A: sliding layers rotate, full layers have no position at all."""
    draft = COHERE2.draft(config, source)
    reach = window_reach(draft.config)
    kinds = layer_kinds(draft.config, every(draft.config.integer("sliding_window_pattern")))

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        slides = kinds[layer.index] == SLIDING and reach is not None
        return replace(layer, encoding=layer.encoding if slides else NONE, reach=reach if slides else None)

    return draft.spec(draft.rope(), vary)


FAMILIES = (
    Family("cohere", ("cohere",), COHERE.describe, "Command R: LayerNorm, neighbours paired"),
    Family(
        "cohere2", ("cohere2", "cohere2_moe"), describe_cohere2, "Command R7B and A: full layers without position"
    ),
)
