"""Falcon: one fused projection in three layouts, with rotary positions or with ALiBi."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, LayerSizes
from toposcope.checkpoints.families.table import Draft, Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import Layout, ModelSpec
from toposcope.encodings import Encoding, alibi

FALCON = Table(
    family="falcon",
    defaults={"n_layer": 32, "hidden_size": 4544, "n_head": 71},
    sizes={
        "layers": ("num_hidden_layers", "n_layer"),
        "width": ("n_embed", "hidden_size"),
        "heads": ("num_attention_heads", "n_head"),
        "kv_heads": ("num_kv_heads", "n_head_kv"),
    },
    eps_keys=("layer_norm_epsilon",),
    eps=1e-5,
    layer="h.{}.",
    linear=("self_attention.query_key_value", "self_attention.dense"),
    norm="layer",
    embedding="word_embeddings",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The norm before attention is `ln_attn` where attention and MLP have one each, else `input_layernorm`."""
    draft = FALCON.draft(config, source)
    sizes, layout = _heads(config, draft.sizes)
    norm = "ln_attn" if f"{draft.prefix(0)}ln_attn.weight" in source.names() else "input_layernorm"
    draft = replace(draft, sizes=sizes, table=replace(FALCON, layout=layout, input_norm=norm))
    return draft.spec(_encoding(draft))


def _heads(config: Config, sizes: LayerSizes) -> tuple[LayerSizes, Layout]:
    """Sizes and layout: grouped (40B and later), one shared key and value (7B), or one of each per head (RW)."""
    # Before the family was called Falcon its two architectures were told apart by name, not by a flag.
    if config.flag("new_decoder_architecture", default=config.get("model_type") == "RefinedWeb"):
        return sizes, "grouped"
    if config.flag("multi_query", default=True):
        return replace(sizes, kv_heads=1), "stacked"
    return replace(sizes, kv_heads=sizes.heads), "per_head"


def _encoding(draft: Draft) -> Encoding:
    """RoPE, or ALiBi as Falcon rounds it: slope, position and product in bfloat16, then scaled like the logit."""
    if not draft.config.flag("alibi", default=False):
        return draft.rope()
    return alibi(
        draft.sizes.heads,
        symmetric=False,
        scale=draft.sizes.head_dim**-0.5,
        slope_dtype="bfloat16",
        table_dtype="bfloat16",
    )


FAMILIES = (
    Family("falcon", ("falcon", "RefinedWeb", "RefinedWebModel"), describe, "Falcon, rotary or with ALiBi (RW)"),
)
