"""GPT-NeoX and Pythia: one fused projection sorted by head, rotary positions on a part of each head."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import rope_from_config


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Attention reads norm(x) whether the MLP stands beside it (parallel residual) or after it."""
    root = find_root(source, "layers.0.attention.query_key_value.weight")
    config = config.with_defaults(num_hidden_layers=44, hidden_size=6144, num_attention_heads=64)
    sizes = Sizes.of(config)
    encoding = rope_from_config(config, sizes.head_dim, default_partial=0.25)
    eps = config.number("layer_norm_eps", default=1e-5)

    def layer(i: int) -> LayerSpec:
        at = f"{root}layers.{i}."
        return LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=True,
            encoding=encoding,
            qkv=Linear.at(f"{at}attention.query_key_value"),
            layout="per_head",
            o=Linear.at(f"{at}attention.dense"),
            input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps),
        )

    return ModelSpec(
        family="gpt_neox",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}embed_in.weight",
        context=claimed_context(config, "max_position_embeddings"),
    )


FAMILIES = (Family("gpt_neox", ("gpt_neox",), describe, "GPT-NeoX and Pythia"),)
