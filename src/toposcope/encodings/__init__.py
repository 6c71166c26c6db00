"""Positional encodings: a name or a model's configuration becomes the tables p, w, g and b of one logit formula."""

from __future__ import annotations

from toposcope.encodings.absolute import learned, learned_init, random, sinusoidal
from toposcope.encodings.bias_alibi import alibi, alibi_slopes
from toposcope.encodings.bias_fire import fire, fire_init, fire_network
from toposcope.encodings.bias_kerple import kerple
from toposcope.encodings.bias_t5 import t5, t5_bucket, t5_init
from toposcope.encodings.config import ConfigValue, RopeSettings, rope_from_config, rope_settings
from toposcope.encodings.content import cope, pope, pope_frequencies
from toposcope.encodings.parameter import Parameter
from toposcope.encodings.record import NONE, Encoding, InputTable, LogitBias, Pairing, Rotary, combine
from toposcope.encodings.registry import EncodingSpec, Kind, Paper, Sizes, kinds, make, papers, parse, spec
from toposcope.encodings.rotary import channel_pairs, rope
from toposcope.encodings.rotary_mla import mla
from toposcope.encodings.rotary_xpos import xpos

PAPERS = papers()

__all__ = [
    "NONE",
    "PAPERS",
    "ConfigValue",
    "Encoding",
    "EncodingSpec",
    "InputTable",
    "Kind",
    "LogitBias",
    "Pairing",
    "Paper",
    "Parameter",
    "RopeSettings",
    "Rotary",
    "Sizes",
    "alibi",
    "alibi_slopes",
    "channel_pairs",
    "combine",
    "cope",
    "fire",
    "fire_init",
    "fire_network",
    "kerple",
    "kinds",
    "learned",
    "learned_init",
    "make",
    "mla",
    "parse",
    "pope",
    "pope_frequencies",
    "random",
    "rope",
    "rope_from_config",
    "rope_settings",
    "sinusoidal",
    "spec",
    "t5",
    "t5_bucket",
    "t5_init",
    "xpos",
]
