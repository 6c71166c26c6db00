"""Gemma 3n and 4: the upper layers use the keys and values of an earlier one; values are normalised too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import FULL, SLIDING, Draft, Table, every, layer_kinds, window_reach
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import Encoding, rope_from_config

GEMMA3N = Table(
    family="gemma3n",
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "sliding_window": 512,
        "max_position_embeddings": 32_768,
        "num_kv_shared_layers": 15,
        "rope_local_base_freq": 1e4,
    },
    output_norm="post_attention_layernorm",
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
)
GEMMA4 = replace(
    GEMMA3N,
    family="gemma4",
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 512,
        "max_position_embeddings": 131_072,
        "num_kv_shared_layers": 0,
        "global_head_dim": 512,
        "num_global_key_value_heads": None,
    },
    rope_unsaid={
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
)


def describe_gemma3n(config: Config, source: TensorSource) -> ModelSpec:
    """Gemma 3n, text: four sliding layers with a short rotary base to one with a long one; logits are not scaled."""
    draft = GEMMA3N.draft(config, source)
    return _describe(draft, layer_kinds(draft.config, every(5)), {})


def describe_gemma4(config: Config, source: TensorSource) -> ModelSpec:
    """Gemma 4, text: full layers have wider heads of which a part turns, and perhaps fewer groups of them."""
    draft = GEMMA4.draft(config, source)
    config = draft.config
    kinds = [*layer_kinds(config, every(6))[:-1], FULL]  # the last is full, whatever the file says
    whole: dict[str, Any] = {"head_dim": config.integer("global_head_dim")}
    tied = config.flag("attention_k_eq_v", default=False)
    if tied and config["num_global_key_value_heads"] is not None:
        whole["kv_heads"] = config.integer("num_global_key_value_heads")
    written = config.part("per_layer_config")  # the same, as newer files say it: for each layer
    for index in [index for index, kind in enumerate(kinds) if kind == FULL][:1]:
        said = written.part(str(index))
        whole |= {"head_dim": said.integer("head_dim", default=whole["head_dim"])}
        if said.get("num_key_value_heads") is not None:
            whole |= {"kv_heads": said.integer("num_key_value_heads")}
    return _describe(draft, kinds, whole, tied=tied)


def _describe(draft: Draft, kinds: list[str], whole: Mapping[str, Any], *, tied: bool = False) -> ModelSpec:
    """`whole` are the sizes of full layers, where they differ; `tied`: their values are keys before the norm."""
    config = draft.config
    causal = config.get("use_bidirectional_attention") != "all"
    reach = window_reach(config)
    if reach is not None and not causal:
        reach = (reach + 1) // 2  # the window stands around the token, half to each side
    first = draft.sizes.layers - config.integer("num_kv_shared_layers", least=0)
    encodings = {kind: _rope(draft, kind, whole) for kind in set(kinds)}

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        kind = kinds[layer.index]
        layer = replace(
            layer,
            **(whole if kind == FULL else {}),
            scale=1.0,
            encoding=encodings[kind],
            reach=reach if kind == SLIDING else None,
            causal=causal,
            v=layer.k if tied and kind == FULL else layer.v,
            v_norm=NormSpec("rms", draft.eps),
        )
        earlier = [index for index in range(first) if kinds[index] == kind]
        if layer.index < first or not earlier:
            return layer
        made = draft.prefix(earlier[-1])
        keys = Linear.at(f"{made}self_attn.k_proj")
        return replace(
            layer,
            kind="cross",
            keys_of=earlier[-1],
            k=keys,
            v=keys if tied and kind == FULL else Linear.at(f"{made}self_attn.v_proj"),
            k_norm=NormSpec.at("rms", f"{made}self_attn.k_norm", draft.eps),
        )

    return draft.spec(encodings[kinds[0]], vary)


def _rope(draft: Draft, kind: str, whole: Mapping[str, Any]) -> Encoding:
    wide = whole.get("head_dim", draft.sizes.head_dim) if kind == FULL else draft.sizes.head_dim
    base = 1e4 if kind == SLIDING else 1e6
    return rope_from_config(draft.config, wide, layer_type=kind, default_base=base)


FAMILIES = (
    Family("gemma3n", ("gemma3n_text",), describe_gemma3n, "Gemma 3n (the text part): shared keys, two rotary bases"),
    Family(
        "gemma4",
        ("gemma4_text", "gemma4_unified_text"),
        describe_gemma4,
        "Gemma 4 (the text part): shared keys, wider full layers that turn in part",
    ),
)
