"""Granite: Llama with a fixed softmax scale and a fixed factor on all that is added to the stream."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec


def describe(family: str, config: Config, source: TensorSource) -> ModelSpec:
    """Granite: `attention_multiplier` scales the logits, `residual_multiplier` what attention adds."""
    draft = Table(family=family).draft(config, source)
    scale = config.number("attention_multiplier", default=1.0)
    gain = config.number("residual_multiplier", default=1.0)
    return draft.spec(draft.rope(), lambda layer, at: replace(layer, scale=scale, output_gain=gain))


FAMILIES = (
    Family("granite", ("granite",), partial(describe, "granite"), "Granite: fixed factors on logits and residuals"),
    Family("granitemoe", ("granitemoe",), partial(describe, "granitemoe"), "Granite mixtures of experts"),
    Family(
        "granitemoeshared",
        ("granitemoeshared",),
        partial(describe, "granitemoeshared"),
        "Granite mixtures of experts with a shared one",
    ),
)
