"""ALBERT: a BERT that runs the same few layers again and again, over embeddings narrower than its layers."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.bert import layer_norm
from toposcope.checkpoints.families.common import Config, Sizes, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec
from toposcope.core.errors import BadConfig

QUERY = "encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight"


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Every layer in the order in which it runs; a repeated one names the first with the same tensors."""
    if config.get("model_type") is not None:  # a file that names no type has no type's defaults
        config = config.with_defaults(num_hidden_layers=12, hidden_size=4096, num_attention_heads=64)
    root = find_root(source, QUERY)
    sizes = Sizes.of(config)
    eps = config.number("layer_norm_eps", default=1e-12)
    encoding = learned_table(source, f"{root}embeddings.position_embeddings.weight")
    encoding = replace(
        encoding, notes=(*encoding.notes, "added to the embeddings, before they are projected to the model's width.")
    )
    order = _order(config, sizes.layers)

    def layer(i: int) -> LayerSpec:
        group, inner = order[i]
        first = order.index(order[i])
        at = f"{root}encoder.albert_layer_groups.{group}.albert_layers.{inner}.attention."
        return LayerSpec(
            stack="encoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=False,
            encoding=encoding,
            q=Linear.at(f"{at}query"),
            k=Linear.at(f"{at}key"),
            v=Linear.at(f"{at}value"),
            o=Linear.at(f"{at}dense"),
            residual_norm=layer_norm(source, f"{at}LayerNorm", eps),
            shared_with=None if first == i else first,
        )

    return ModelSpec(
        family="albert",
        layers=tuple(layer(i) for i in range(len(order))),
        embedding=f"{root}embeddings.word_embeddings.weight",
        context=None if encoding.input is None else encoding.input.length,
    )


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
