"""Whisper: an encoder of sound with stored sinusoids, a decoder of text with learned positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, find_root, learned_table
from toposcope.checkpoints.families.table import Draft, Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.encodings import NONE, Encoding


def _table(stack: str) -> Table:
    return Table(
        family="whisper",
        stack=stack,
        causal=stack == "decoder",
        defaults={f"{stack}_layers": 4, "hidden_size": 384, f"{stack}_attention_heads": 6},
        sizes={
            "layers": (f"{stack}_layers",),
            "width": ("d_model", "hidden_size"),
            "heads": (f"{stack}_attention_heads",),
            "kv_heads": (),
        },
        eps_keys=(),  # torch's default: the configuration does not name it
        eps=1e-5,
        context=("max_target_positions",),
        layer=f"{stack}.layers.{{}}.",
        # keys have no bias, unlike the other three
        linear=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
        norm="layer",
        input_norm="self_attn_layer_norm",
        embedding="decoder.embed_tokens",
    )


ENCODER, DECODER = _table("encoder"), _table("decoder")
CROSS = replace(
    DECODER,
    causal=False,
    linear=tuple(name.replace("self_attn", "encoder_attn") for name in DECODER.linear),
    input_norm="encoder_attn_layer_norm",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Encoder layers, then for each decoder layer its self- and its cross-attention; either stack may be missing."""
    root = find_root(source, ENCODER.first, DECODER.first)
    drafts = [
        table.draft(config, source, root) for table in (ENCODER, DECODER) if f"{root}{table.first}" in source.names()
    ]
    spec = drafts[0].spec(NONE, layers=(layer for draft in drafts for layer in _layers(draft)))
    return spec if spec.embedding in source.names() else replace(spec, embedding=None)


def _layers(draft: Draft) -> Iterator[LayerSpec]:
    stack = draft.table.stack
    encoding = _positions(draft.source, f"{draft.root}{stack}.embed_positions.weight", stack)
    crossing = replace(draft, table=CROSS)
    for i in range(draft.sizes.layers):
        yield draft.layer(i, encoding)
        if stack == "decoder":
            yield replace(crossing.layer(i, NONE), kind="cross")


def _positions(source: TensorSource, name: str, stack: str) -> Encoding:
    """The stored table; the encoder's holds sinusoids, which are never trained."""
    table = learned_table(source, name)
    if stack == "decoder" or table.input is None:
        return table
    return replace(table, name="sinusoidal", title=f"sinusoids, stored for {table.input.length} positions")


FAMILIES = (Family("whisper", ("whisper",), describe, "Whisper"),)
