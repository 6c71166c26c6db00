"""MPT: one fused projection, ALiBi or a learned table, usually no biases at all."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.config_only import without_weights
from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, learned_table
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings import NONE, Encoding, alibi

MPT = Table(
    family="mpt",
    defaults={"n_layers": 24, "d_model": 2048, "n_heads": 16},
    sizes={
        "layers": ("num_hidden_layers", "n_layers"),
        "width": ("hidden_size", "d_model"),
        "heads": ("num_attention_heads", "n_heads"),
    },
    grouped=False,
    eps_keys=("layer_norm_epsilon",),
    eps=1e-5,
    context=("max_seq_len",),
    layer="blocks.{}.",
    linear=("attn.Wqkv", "attn.out_proj"),
    norm="layer",
    input_norm="norm_1",
    embedding="wte",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The settings of attention stand in `attn_config`; what clipping does to q, k and v is left out, and said."""
    draft = MPT.draft(config, source)
    attn = config.part("attn_config")
    scale = attn.number("softmax_scale", default=draft.sizes.head_dim**-0.5)
    warnings = _warnings(attn)
    encoding = _encoding(attn, source, draft.root, draft.sizes.heads)
    return draft.spec(encoding, lambda layer, at: replace(layer, scale=scale, warnings=warnings))


def _encoding(attn: Config, source: TensorSource, root: str, heads: int) -> Encoding:
    """ALiBi, or without it the learned table where the file holds one."""
    if attn.flag("rope", default=False):
        raise BadConfig(f"{attn.where} asks for rotary positions, which no adapter for MPT reads.")
    # transformers applies ALiBi whatever this key says, and always with a maximum of 8;
    # the models were trained with what the keys say.
    if attn.flag("alibi", default=True):
        return alibi(heads, symmetric=False, max_bias=attn.number("alibi_bias_max", default=8.0))
    table = f"{root}wpe.weight"
    there = table in source.names() or without_weights(source)
    return learned_table(source, table) if there else NONE


def _warnings(attn: Config) -> tuple[str, ...]:
    found = []
    if attn.get("clip_qkv"):
        found.append(f"queries, keys and values are clipped to +-{attn.number('clip_qkv'):g} (clip_qkv)")
    if attn.flag("qk_ln", default=False):
        found.append("queries and keys are normalised (qk_ln)")
    if attn.flag("prefix_lm", default=False):
        found.append("tokens of a prefix also see what follows them (prefix_lm)")
    return tuple(found)


FAMILIES = (Family("mpt", ("mpt",), describe, "MPT"),)
