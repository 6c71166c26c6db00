"""ModernBERT: pre-norm encoder, fused projections, rotary positions with one base far and another near."""

from __future__ import annotations

from collections.abc import Mapping

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.core.errors import BadConfig
from toposcope.encodings import Encoding, rope_from_config

BASES = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Every third layer sees the whole text, the others `local_attention` tokens around each."""
    config = config.with_defaults(num_hidden_layers=22, hidden_size=768, num_attention_heads=12)
    root = find_root(source, "layers.0.attn.Wqkv.weight")
    sizes = Sizes.of(config)
    eps = config.number("norm_eps", default=1e-5)
    reach = config.integer("local_attention", default=128) // 2
    kinds = _layer_types(config, sizes.layers)
    encodings = {kind: _rotation(config, sizes.head_dim, kind) for kind in dict.fromkeys(kinds)}

    def layer(i: int) -> LayerSpec:
        at = f"{root}layers.{i}."
        # the first layer's norm is left out: its input comes normalised from the embeddings
        normed = f"{at}attn_norm.weight" in source.names() or i > 0
        return LayerSpec(
            stack="encoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=False,
            reach=reach if kinds[i] == "sliding_attention" else None,
            encoding=encodings[kinds[i]],
            qkv=Linear.at(f"{at}attn.Wqkv"),
            o=Linear.at(f"{at}attn.Wo"),
            input_norm=NormSpec.at("layer", f"{at}attn_norm", eps) if normed else None,
        )

    return ModelSpec(
        family="modernbert",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}embeddings.tok_embeddings.weight",
        context=claimed_context(config, "max_position_embeddings"),
    )


def _layer_types(config: Config, layers: int) -> list[str]:
    kinds = config.listed("layer_types", layers)
    if kinds is None:
        every = config.integer("global_attn_every_n_layers", default=3)
        return ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    unknown = [kind for kind in kinds if kind not in BASES]
    if unknown:
        raise BadConfig(f"'layer_types' in {config.where} holds {unknown[0]!r}; expected {' or '.join(BASES)}.")
    return kinds


def _rotation(config: Config, head_dim: int, kind: str) -> Encoding:
    """The rotation of one kind of layer; a kind for which nothing is written turns at its usual base."""
    written = config.get("rope_parameters")
    if isinstance(written, Mapping) and written.get(kind) is None:
        config = config.updated(rope_parameters={**written, kind: {"rope_type": "default"}})
    return rope_from_config(config, head_dim, layer_type=kind, default_base=BASES[kind])


FAMILIES = (
    Family(
        "modernbert",
        ("modernbert",),
        describe,
        "ModernBERT: pre-norm encoder with global and local rotary attention",
        "layers.0.attn.Wo.weight",
    ),
)
