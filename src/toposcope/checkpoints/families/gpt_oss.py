"""gpt-oss: Llama with biases, a sink in every head's softmax, and a window on every other layer."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table, every, window_reach, windows
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec

GPT_OSS = Table(
    family="gpt_oss",
    defaults={"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "max_position_embeddings": 131_072},
    eps=1e-5,
    rope={"default_base": 1.5e5},
    rope_unsaid={
        "rope_type": "yarn",
        "rope_theta": 1.5e5,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """gpt-oss: each head's sink is a logit that takes its share of the softmax and gives no value."""
    draft = GPT_OSS.draft(config, source)
    windowed = windows(draft.config, every(2), window_reach(draft.config))

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(windowed(layer, at), sinks=f"{at}self_attn.sinks")

    return draft.spec(draft.rope(), vary)


FAMILIES = (Family("gpt_oss", ("gpt_oss",), describe, "gpt-oss: attention sinks, every other layer slides"),)
