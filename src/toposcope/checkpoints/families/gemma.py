"""Gemma 1-3: norm gains stored minus one, a scale of its own, sandwich norms, windows with their own rotary base."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import FULL, SLIDING, Table, every, layer_kinds, window_reach, windows
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, Skipped
from toposcope.core.errors import BadConfig
from toposcope.encodings import rope_from_config

GEMMA = Table(family="gemma", defaults={"num_key_value_heads": 16, "head_dim": 256}, norm_offset=1.0)
GEMMA2 = Table(
    family="gemma2",
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
    },
    norm_offset=1.0,
    output_norm="post_attention_layernorm",
)
GEMMA3 = Table(
    family="gemma3",
    defaults={
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131_072,
        "rope_local_base_freq": 1e4,
    },
    norm_offset=1.0,
    output_norm="post_attention_layernorm",
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    marker="self_attn.q_norm",  # the vision tower has layers with a q_proj too, but no norm of queries
)


VAULTGEMMA = replace(GEMMA2, family="vaultgemma", output_norm=None)


def describe_gemma2(table: Table, config: Config, source: TensorSource) -> ModelSpec:
    """Gemma 2: norms on both sides of attention, capped logits, every other layer slides."""
    draft = table.draft(config, source)
    config = draft.config
    scale = _positive(config, "query_pre_attn_scalar") ** -0.5
    softcap = None if config["attn_logit_softcapping"] is None else _positive(config, "attn_logit_softcapping")
    windowed = windows(config, every(2), window_reach(config))
    return draft.spec(draft.rope(), lambda layer, at: replace(windowed(layer, at), scale=scale, softcap=softcap))


def describe_gemma3(config: Config, source: TensorSource) -> ModelSpec:
    """Gemma 3, text: normed queries and keys; five sliding layers with a short rotary base to one with a long one."""
    draft = GEMMA3.draft(config.part("text_config") if config.get("text_config") else config, source)
    inner = draft.config
    kinds = layer_kinds(inner, every(inner.integer("sliding_window_pattern")))
    causal = not inner.flag("use_bidirectional_attention", default=False)
    reach = window_reach(inner)
    if reach is not None and not causal:
        reach = (reach + 1) // 2  # an embedding model's window stands around the token, half to each side
    scale = _positive(inner, "query_pre_attn_scalar") ** -0.5
    bases = {SLIDING: 1e4, FULL: 1e6}
    encodings = {
        kind: rope_from_config(
            inner, draft.sizes.head_dim, layer_type=kind, default_base=bases[kind], whole_heads=True
        )
        for kind in set(kinds)
    }

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        kind = kinds[layer.index]
        return replace(
            layer,
            scale=scale,
            encoding=encodings[kind],
            reach=reach if kind == SLIDING else None,
            causal=causal,
        )

    vision = tuple(sorted(name for name in source.names() if "vision_tower." in name))
    skipped = (Skipped("the vision tower", "only the text part is read", vision),) if vision else ()
    return draft.spec(encodings[kinds[0]], vary, skipped=skipped)


def _positive(config: Config, key: str) -> float:
    value = config.number(key)
    if value <= 0:
        raise BadConfig(f"'{key}' in {config.where} is {value:g}; expected a number above 0.")
    return value


FAMILIES = (
    Family("gemma", ("gemma",), GEMMA.describe, "Gemma 1: norm gains stored minus one"),
    Family(
        "gemma2",
        ("gemma2",),
        partial(describe_gemma2, GEMMA2),
        "Gemma 2: sandwich norms, capped logits, alternating windows",
    ),
    Family(
        "vaultgemma",
        ("vaultgemma",),
        partial(describe_gemma2, VAULTGEMMA),
        "VaultGemma: Gemma 2 without the norm after attention",
    ),
    Family(
        "gemma3",
        ("gemma3", "gemma3_text"),
        describe_gemma3,
        "Gemma 3 (the text part): normed queries and keys, two rotary bases",
    ),
)
