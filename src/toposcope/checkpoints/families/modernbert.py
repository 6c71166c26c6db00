"""ModernBERT: pre-norm encoder, fused projections, rotary positions with one base far and another near."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import FULL, SLIDING, Table, layer_kinds
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.encodings import Encoding, rope_from_config

BASES = {FULL: 160_000.0, SLIDING: 10_000.0}
MODERNBERT = Table(
    family="modernbert",
    stack="encoder",
    causal=False,
    defaults={"num_hidden_layers": 22, "hidden_size": 768, "num_attention_heads": 12},
    grouped=False,
    eps_keys=("norm_eps",),
    eps=1e-5,
    linear=("attn.Wqkv", "attn.Wo"),
    norm="layer",
    input_norm="attn_norm",
    embedding="embeddings.tok_embeddings",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Every third layer sees the whole text, the others `local_attention` tokens around each."""
    draft = MODERNBERT.draft(config, source)
    config = draft.config
    reach = config.integer("local_attention", default=128) // 2
    interval = config.integer("global_attn_every_n_layers", default=3)
    kinds = layer_kinds(config, lambda index: index % interval != 0)
    encodings = {kind: _rotation(config, draft.sizes.head_dim, kind) for kind in dict.fromkeys(kinds)}

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        kind = kinds[layer.index]
        # the first layer's norm is left out: its input comes normalised from the embeddings
        normed = layer.index > 0 or f"{at}attn_norm.weight" in source.names()
        return replace(
            layer,
            encoding=encodings[kind],
            reach=reach if kind == SLIDING else None,
            input_norm=layer.input_norm if normed else None,
        )

    return draft.spec(encodings[kinds[0]], vary)


def _rotation(config: Config, head_dim: int, kind: str) -> Encoding:
    """The rotation of one kind of layer; a kind for which nothing is written turns at its usual base."""
    written = config.get("rope_parameters")
    if isinstance(written, Mapping) and written.get(kind) is None:
        config = config.updated(rope_parameters={**written, kind: {"rope_type": "default"}})
    return rope_from_config(config, head_dim, layer_type=kind, default_base=BASES[kind], whole_heads=True)


FAMILIES = (
    Family(
        "modernbert",
        ("modernbert",),
        describe,
        "ModernBERT: pre-norm encoder with global and local rotary attention",
        "layers.0.attn.Wo.weight",
    ),
)
