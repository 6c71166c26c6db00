"""Granite: Llama with a fixed softmax scale and a fixed factor on all that is added to the stream."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.decoder import decoder
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec


def describe_granite(config: Config, source: TensorSource, *, family: str = "granite") -> ModelSpec:
    """Granite: `attention_multiplier` scales the logits, `residual_multiplier` what attention adds."""
    scale = config.number("attention_multiplier", default=1.0)
    gain = config.number("residual_multiplier", default=1.0)
    return decoder(family, config, source, lambda layer, at: replace(layer, scale=scale, output_gain=gain))


def describe_granite_moe(config: Config, source: TensorSource) -> ModelSpec:
    """Granite mixtures: the same attention."""
    return describe_granite(config, source, family="granitemoe")


FAMILIES = (
    Family("granite", ("granite",), describe_granite, "Granite: fixed factors on logits and residuals"),
    Family("granitemoe", ("granitemoe",), describe_granite_moe, "Granite mixtures of experts"),
)
