"""Falcon: one fused projection in three layouts, with rotary positions or with ALiBi."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Layout, Linear, ModelSpec, NormSpec
from toposcope.encodings import Encoding, alibi, rope_from_config


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The norm before attention is `ln_attn` where attention and MLP have one each, else `input_layernorm`."""
    root = find_root(source, "h.0.self_attention.query_key_value.weight")
    sizes, layout = _heads(config)
    encoding = _encoding(config, sizes)
    eps = config.number("layer_norm_epsilon", default=1e-5)
    norm = "ln_attn" if f"{root}h.0.ln_attn.weight" in source.names() else "input_layernorm"

    def layer(i: int) -> LayerSpec:
        at = f"{root}h.{i}."
        return LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=True,
            encoding=encoding,
            qkv=Linear.at(f"{at}self_attention.query_key_value"),
            layout=layout,
            o=Linear.at(f"{at}self_attention.dense"),
            input_norm=NormSpec.at("layer", f"{at}{norm}", eps),
        )

    return ModelSpec(
        family="falcon",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}word_embeddings.weight",
        context=claimed_context(config, "max_position_embeddings"),
    )


def _heads(config: Config) -> tuple[Sizes, Layout]:
    """Sizes and layout: grouped (40B and later), one shared key and value (7B), or one of each per head (RW)."""
    sizes = Sizes.of(
        config.with_defaults(n_layer=32, hidden_size=4544, n_head=71),
        layers=("num_hidden_layers", "n_layer"),
        width=("n_embed", "hidden_size"),
        heads=("num_attention_heads", "n_head"),
        kv_heads=("num_kv_heads", "n_head_kv"),
    )
    # Before the family was called Falcon its two architectures were told apart by name, not by a flag.
    if config.flag("new_decoder_architecture", default=config.get("model_type") == "RefinedWeb"):
        return sizes, "grouped"
    if config.flag("multi_query", default=True):
        return replace(sizes, kv_heads=1), "stacked"
    return replace(sizes, kv_heads=sizes.heads), "per_head"


def _encoding(config: Config, sizes: Sizes) -> Encoding:
    """RoPE, or ALiBi as Falcon rounds it: slope, position and product in bfloat16, then scaled like the logit."""
    if not config.flag("alibi", default=False):
        return rope_from_config(config, sizes.head_dim)
    return alibi(
        sizes.heads,
        symmetric=False,
        scale=sizes.head_dim**-0.5,
        slope_dtype="bfloat16",
        table_dtype="bfloat16",
    )


FAMILIES = (
    Family("falcon", ("falcon", "RefinedWeb", "RefinedWebModel"), describe, "Falcon, rotary or with ALiBi (RW)"),
)
