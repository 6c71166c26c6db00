"""T5 and its relatives: an encoder and a decoder, bucketed relative biases, logits that are not scaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, find_root
from toposcope.checkpoints.families.table import Draft, Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, Skipped
from toposcope.core.errors import MissingTensor
from toposcope.encodings import NONE, Encoding, t5

ENCODER = Table(
    family="t5",
    stack="encoder",
    causal=False,
    sizes={
        "layers": ("num_layers", "num_hidden_layers"),
        "width": ("d_model", "hidden_size"),
        "heads": ("num_heads", "num_attention_heads"),
        "head_dim": ("d_kv", "head_dim"),
    },
    grouped=False,
    eps_keys=("layer_norm_epsilon",),
    context=("n_positions",),
    layer="encoder.block.{}.layer.0.",
    linear=("SelfAttention.q", "SelfAttention.k", "SelfAttention.v", "SelfAttention.o"),
    input_norm="layer_norm",
    embedding=None,
)
DECODER = replace(ENCODER, stack="decoder", causal=True, layer="decoder.block.{}.layer.0.")
CROSS = replace(
    DECODER,
    causal=False,
    layer="decoder.block.{}.layer.1.",
    linear=tuple(name.replace("SelfAttention", "EncDecAttention") for name in DECODER.linear),
)
_MT5 = {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 6, "head_dim": 64}
# By model type, what a file means that leaves it out.
UNSAID = {
    "t5": {**_MT5, "num_hidden_layers": 6, "num_attention_heads": 8},
    "switch_transformers": {
        **_MT5,
        "num_hidden_layers": 12,
        "num_decoder_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
    },
}
BIAS = "SelfAttention.relative_attention_bias.weight"
CROSS_BIAS = "EncDecAttention.relative_attention_bias.weight"


def describe(family: str, config: Config, source: TensorSource) -> ModelSpec:
    """Encoder layers, then for each decoder layer its self- and its cross-attention; either stack may be missing.

    The bias belongs to the first layer of a stack and serves all of them, unless every layer has its own (UMT5).
    """
    root = find_root(source, ENCODER.first, DECODER.first)
    config = config.with_defaults(**UNSAID.get(str(config.get("model_type")), _MT5))
    drafts = [
        table.draft(config, source, root) for table in (ENCODER, DECODER) if f"{root}{table.first}" in source.names()
    ]
    distance = config.integer("relative_attention_max_distance", default=128)
    tables: list[str] = []

    @cache  # one table in memory for all layers that share it
    def bias(name: str, bidirectional: bool) -> Encoding:
        tables.append(name)
        return _buckets(source, name, drafts[0].sizes.heads, bidirectional, distance)

    def attention(draft: Draft) -> Iterator[LayerSpec]:
        decoder, depth = draft.table.stack == "decoder", draft.sizes.layers
        crossing = replace(draft, table=CROSS)
        for i in range(config.integer("num_decoder_layers", default=depth) if decoder else depth):
            own, first = (f"{draft.prefix(j)}{BIAS}" for j in (i, 0))
            yield replace(draft.layer(i, bias(own if own in source.names() else first, not decoder)), scale=1.0)
            if decoder:
                yield replace(crossing.layer(i, NONE), kind="cross", scale=1.0)

    spec = drafts[0].spec(NONE, layers=(layer for draft in drafts for layer in attention(draft)))
    embeddings = (f"{root}shared.weight", f"{root}encoder.embed_tokens.weight", f"{root}decoder.embed_tokens.weight")
    return replace(
        spec,
        family=family,
        embedding=next((name for name in embeddings if name in source.names()), None),
        accounted=tuple(tables),
        skipped=_never_used(source),
    )


def _never_used(source: TensorSource) -> tuple[Skipped, ...]:
    """The bias of cross-attention, which the published files hold and no version of the model uses."""
    held = tuple(sorted(name for name in source.names() if name.endswith(CROSS_BIAS)))
    return (Skipped("EncDecAttention.relative_attention_bias", "no version of the model uses it", held),) * bool(held)


def _buckets(source: TensorSource, name: str, heads: int, bidirectional: bool, distance: int) -> Encoding:
    if name not in source.names():
        raise MissingTensor(f"{source.path} holds no tensor '{name}', the relative bias of its stack.")
    shape = source.info(name).shape
    if len(shape) != 2 or shape[1] != heads:
        raise MissingTensor(
            f"the relative bias '{name}' in {source.path} has shape {shape}; expected (buckets, {heads} heads)."
        )
    return t5(source.read(name), bidirectional=bidirectional, max_distance=distance)


FAMILIES = (
    Family("t5", ("t5", "mt5"), partial(describe, "t5"), "T5, Flan-T5, ByT5 and mT5"),
    Family(
        "switch_transformers",
        ("switch_transformers",),
        partial(describe, "switch_transformers"),
        "Switch Transformers: T5 as a mixture of experts",
    ),
    Family("umt5", ("umt5",), partial(describe, "umt5"), "UMT5: T5 with a bias in every layer"),
)
