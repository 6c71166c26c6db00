"""ViT and DeiT: pre-norm encoders over image patches, with one learned vector for each place of the sequence."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import Encoding

STORED = "encoder.layer.0.attention.attention.query.weight"
RENAMED = "layers.0.attention.q_proj.weight"


def projections(source: TensorSource, at: str) -> tuple[Linear, Linear, Linear, Linear]:
    """Queries, keys, values and output of a layer, under the names files have had and under the newer ones."""
    if f"{at}attention.q_proj.weight" in source.names():
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
    else:
        names = ("attention.query", "attention.key", "attention.value", "output.dense")
    q, k, v, o = (Linear.at(f"{at}attention.{name}") for name in names)
    return q, k, v, o


def patch_positions(source: TensorSource, name: str, first: str) -> Encoding:
    """The learned table of a vision model; `first` says what stands before the patches."""
    encoding = learned_table(source, name)
    note = f"position 0 on: {first}, then the patches row by row. For images of another size the table is resampled."
    return replace(encoding, notes=(*encoding.notes, note))


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """ViT: a class token, then the patches."""
    return _describe(config, source, "vit", "the class token")


def describe_deit(config: Config, source: TensorSource) -> ModelSpec:
    """DeiT: a class token and a distillation token, then the patches."""
    return _describe(config, source, "deit", "the class token, the distillation token")


def _describe(config: Config, source: TensorSource, family: str, first: str) -> ModelSpec:
    config = config.with_defaults(num_hidden_layers=12, hidden_size=768, num_attention_heads=12)
    root = find_root(source, STORED, RENAMED)
    stack = f"{root}encoder.layer." if any(name.endswith(STORED) for name in source.names()) else f"{root}layers."
    sizes = Sizes.of(config)
    eps = config.number("layer_norm_eps", default=1e-12)
    encoding = patch_positions(source, f"{root}embeddings.position_embeddings", first)

    def layer(i: int) -> LayerSpec:
        at = f"{stack}{i}."
        q, k, v, o = projections(source, at)
        return LayerSpec(
            stack="vision",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=False,
            encoding=encoding,
            input_norm=NormSpec.at("layer", f"{at}layernorm_before", eps),
            q=q,
            k=k,
            v=v,
            o=o,
        )

    return ModelSpec(
        family=family,
        layers=tuple(layer(i) for i in range(sizes.layers)),
        context=None if encoding.input is None else encoding.input.length,
    )


FAMILIES = (
    Family("vit", ("vit",), describe, "ViT: pre-norm image encoder with learned positions"),
    Family("deit", ("deit",), describe_deit, "DeiT: ViT with a distillation token"),
)
