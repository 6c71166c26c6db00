"""ALBERT: a BERT that runs the same few layers again and again, over embeddings narrower than its layers."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.bert import BERT, NARROW, sized
from toposcope.checkpoints.families.common import Config, learned_table, with_note
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.core.errors import BadConfig

ALBERT = replace(
    BERT,
    family="albert",
    context=(),
    layer="encoder.albert_layer_groups.0.albert_layers.{}.attention.",  # those of the first group
    linear=("query", "key", "value", "dense"),
    residual_norm="LayerNorm",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Every layer in the order in which it runs; a repeated one names the first with the same tensors."""
    config = sized(config, num_hidden_layers=12, hidden_size=4096, num_attention_heads=64)
    draft = ALBERT.draft(config, source)
    encoding = with_note(learned_table(source, f"{draft.root}embeddings.position_embeddings.weight"), NARROW)
    order = _order(config, draft.sizes.layers)

    def layer(i: int) -> LayerSpec:
        group, inner = order[i]
        first = order.index(order[i])
        at = f"{draft.root}encoder.albert_layer_groups.{group}.albert_layers.{inner}.attention."
        return replace(draft.layer(i, encoding, at), shared_with=None if first == i else first)

    return draft.spec(encoding, layers=(layer(i) for i in range(len(order))))


def _order(config: Config, depth: int) -> list[tuple[int, int]]:
    """The (group, inner layer) that runs at each step: the depth is cut evenly into groups."""
    groups = config.integer("num_hidden_groups", default=1)
    inner = config.integer("inner_group_num", default=1)
    if groups > depth or depth * inner > 10_000:
        raise BadConfig(
            f"{config.where} claims {groups} groups of {inner} layers for a depth of {depth}; "
            "expected at most one group per layer, and at most 10000 layers."
        )
    return [(int(i / (depth / groups)), j) for i in range(depth) for j in range(inner)]


FAMILIES = (
    Family(
        "albert",
        ("albert",),
        describe,
        "ALBERT: post-norm encoder whose layers share their weights",
        "albert_layers.0.attention.query.weight",
    ),
)
