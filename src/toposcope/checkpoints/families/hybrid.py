"""Hybrids: a few layers of attention among state-space, linear or convolutional ones, which are listed as skipped."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.core.errors import BadConfig

JAMBA = Table(family="jamba", defaults={"num_key_value_heads": 8}, some=True, rotates=False)
BAMBA = Table(
    family="bamba",
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    some=True,
    rope={"default_partial": 0.5},
)
NEMOTRON_H = Table(
    family="nemotron_h",
    defaults={"num_key_value_heads": 8, "head_dim": 128},
    some=True,
    rotates=False,
    eps_keys=("layer_norm_epsilon",),
    eps=1e-5,
    linear=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj"),
    input_norm="norm",
    embedding="embeddings",
)
LFM2 = Table(
    family="lfm2",
    defaults={"num_key_value_heads": 8},
    some=True,
    eps_keys=("norm_eps",),
    eps=1e-5,
    linear=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
    input_norm="operator_norm",
    qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"),
    rope={"default_base": 1e6},
)
FALCON_H1 = Table(family="falcon_h1", defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5})


def describe_bamba(config: Config, source: TensorSource) -> ModelSpec:
    """Bamba: half of each head turns; a fraction at the top of the file is not read."""
    return BAMBA.describe(config.updated(partial_rotary_factor=None), source)


def describe_falcon_h1(config: Config, source: TensorSource) -> ModelSpec:
    """Falcon H1: attention beside a state-space mixer in every layer; fixed factors before, after and on keys."""
    draft = FALCON_H1.draft(config, source)
    config = draft.config
    before = config.number("attention_in_multiplier", default=1.0)
    keys = config.number("key_multiplier", default=1.0)
    after = config.number("attention_out_multiplier", default=1.0)
    if before != 1 and config.flag("attention_bias", default=False):
        raise BadConfig(
            f"{config.where} has biases and attention_in_multiplier {before:g}: a factor that misses the bias has no "
            "place in the description."
        )

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        if layer.q is None or layer.k is None or layer.v is None:
            return layer
        return replace(
            layer,
            q=replace(layer.q, factor=before),
            k=replace(layer.k, factor=before * keys),
            v=replace(layer.v, factor=before),
            output_gain=after,
        )

    return draft.spec(draft.rope(), vary)


FAMILIES = (
    Family("jamba", ("jamba",), JAMBA.describe, "Jamba: attention without position among state-space layers"),
    Family("bamba", ("bamba",), describe_bamba, "Bamba: attention among state-space layers"),
    Family("nemotron_h", ("nemotron_h",), NEMOTRON_H.describe, "Nemotron H: attention without position among others"),
    Family("lfm2", ("lfm2", "lfm2_moe"), LFM2.describe, "LFM 2: attention among short convolutions"),
    Family("falcon_h1", ("falcon_h1",), describe_falcon_h1, "Falcon H1: attention beside a state-space mixer"),
)
