"""Encoders of sound whose positions come from a convolution over the input: wav2vec 2, HuBERT, data2vec.

What the convolution adds depends on the sound, so there is no table of positions; attention itself is plain.
"""

from __future__ import annotations

from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec, Skipped
from toposcope.encodings import Encoding

WHY = "a convolution over the input adds what places its frames, so position depends on content"
CONVOLVED = Encoding(
    name="convolutional", title="a convolution over the input", exact_tables=False, notes=(f"{WHY}.",)
)
NORM = "layer_norm"


def describe(family: str, config: Config, source: TensorSource, *, choice: bool = True) -> ModelSpec:
    """The norm stands after the addition, or before attention where `do_stable_layer_norm` is set.

    `choice` False: always after the addition; data2vec's files carry the flag, and its code does not read it.
    """
    before = choice and config.flag("do_stable_layer_norm", default=False)
    draft = Table(
        family=family,
        stack="encoder",
        causal=False,
        defaults={"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
        grouped=False,
        eps_keys=("layer_norm_eps",),
        eps=1e-5,
        context=(),
        layer="encoder.layers.{}.",
        linear=("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.out_proj"),
        norm="layer",
        input_norm=NORM if before else None,
        residual_norm=None if before else NORM,
        embedding=None,
    ).draft(config, source)
    names = tuple(sorted(name for name in source.names() if ".pos_conv_embed." in name))
    return draft.spec(CONVOLVED, skipped=(Skipped("pos_conv_embed", WHY, names),) if names else ())


FAMILIES = (
    Family("wav2vec2", ("wav2vec2",), partial(describe, "wav2vec2"), "wav2vec 2: positions by convolution"),
    Family("hubert", ("hubert",), partial(describe, "hubert"), "HuBERT: positions by convolution"),
    Family(
        "data2vec-audio",
        ("data2vec-audio",),
        partial(describe, "data2vec-audio", choice=False),
        "data2vec (sound): positions by convolutions",
    ),
)
