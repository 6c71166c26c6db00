"""Llama 4: layers that rotate see chunks and norm what they rotated; every fourth has no position and no limit."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import FULL, Table, every
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, NormSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings import NONE
from toposcope.encodings.record import Encoding, QueryScale

CHUNKED = "chunked_attention"
LLAMA4 = Table(
    family="llama4",
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
    },
    eps=1e-5,
    rope={"default_base": 5e5, "pairing": "interleaved"},
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Llama 4: `no_rope_layers` holds, despite its name, a 1 for each layer that does rotate."""
    draft = LLAMA4.draft(config, source)
    config, layers = draft.config, draft.sizes.layers
    rotates = config.listed("no_rope_layers", layers) or [
        every(config.integer("no_rope_layer_interval"))(index) for index in range(layers)
    ]
    kinds = config.listed("layer_types", layers) or [CHUNKED if each else FULL for each in rotates]
    unknown = [kind for kind in kinds[:layers] if kind not in (CHUNKED, FULL)]
    if unknown:
        raise BadConfig(f"'layer_types' in {config.where} names {unknown[0]!r}; known are '{CHUNKED}' and '{FULL}'.")
    chunk = config.integer("attention_chunk_size") if config.get("attention_chunk_size") else None
    norm = NormSpec("rms", draft.eps) if config.flag("use_qk_norm", default=True) else None
    still = _still(config)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        turns = bool(rotates[layer.index])
        return replace(
            layer,
            encoding=layer.encoding if turns else still,
            chunk=chunk if kinds[layer.index] == CHUNKED else None,
            q_norm=norm if turns else None,
            k_norm=norm if turns else None,
            qk_norm_after=turns and norm is not None,
        )

    return draft.spec(draft.rope(), vary)


def _still(config: Config) -> Encoding:
    """What the layers without rotation have: queries that grow with their position, or nothing."""
    if not config["attn_temperature_tuning"]:
        return NONE
    scale = QueryScale(config.number("attn_scale"), config.integer("floor_scale"), shift=1)
    title = f"no rotation; queries grow by position, from {scale.plain_below} on"
    return Encoding(name="query-scale", title=title, query_scale=scale)


FAMILIES = (Family("llama4", ("llama4_text",), describe, "Llama 4 (the text part): chunks, layers without position"),)
