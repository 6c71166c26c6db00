"""Granite: Llama with a fixed softmax scale and a fixed factor on all that is added to the stream."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table, Variation
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec


def describe(family: str, config: Config, source: TensorSource) -> ModelSpec:
    """Granite: `attention_multiplier` scales the logits, `residual_multiplier` what attention adds."""
    draft = Table(family=family).draft(config, source)
    return draft.spec(draft.rope(), _scaled(config))


def _scaled(config: Config) -> Variation:
    scale = config.number("attention_multiplier", default=1.0)
    gain = config.number("residual_multiplier", default=1.0)
    return lambda layer, at: replace(layer, scale=scale, output_gain=gain)


def describe_hybrid(config: Config, source: TensorSource) -> ModelSpec:
    """Granite 4: attention among state-space layers, without position unless the configuration asks for it."""
    turns = config.get("position_embedding_type") == "rope"
    draft = Table(family="granitemoehybrid", some=True, rotates=turns).draft(config, source)
    return draft.spec(draft.rope(), _scaled(config))


FAMILIES = (
    Family("granite", ("granite",), partial(describe, "granite"), "Granite: fixed factors on logits and residuals"),
    Family("granitemoe", ("granitemoe",), partial(describe, "granitemoe"), "Granite mixtures of experts"),
    Family(
        "granitemoeshared",
        ("granitemoeshared",),
        partial(describe, "granitemoeshared"),
        "Granite mixtures of experts with a shared one",
    ),
    Family(
        "granitemoehybrid",
        ("granitemoehybrid",),
        describe_hybrid,
        "Granite 4: attention among state-space layers",
    ),
)
