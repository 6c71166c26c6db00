"""GPT-J: separate projections without biases, rotary positions with adjacent channels paired."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import rope


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The first `rotary_dim` channels of each head turn: 64 where the key is missing, all where it is null."""
    root = find_root(source, "h.0.attn.q_proj.weight")
    sizes = Sizes.of(
        config.with_defaults(n_layer=28, n_embd=4096, n_head=16),
        layers=("num_hidden_layers", "n_layer"),
        width=("hidden_size", "n_embd"),
        heads=("num_attention_heads", "n_head"),
    )
    whole_head = "rotary_dim" in config and config["rotary_dim"] is None
    rotary_dim = None if whole_head else config.integer("rotary_dim", default=64)
    encoding = rope(sizes.head_dim, pairing="interleaved", rotary_dim=rotary_dim)
    eps = config.number("layer_norm_epsilon", default=1e-5)

    def layer(i: int) -> LayerSpec:
        at = f"{root}h.{i}."
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
            q=Linear.at(f"{at}attn.q_proj"),
            k=Linear.at(f"{at}attn.k_proj"),
            v=Linear.at(f"{at}attn.v_proj"),
            o=Linear.at(f"{at}attn.out_proj"),
            input_norm=NormSpec.at("layer", f"{at}ln_1", eps),
        )

    return ModelSpec(
        family="gptj",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}wte.weight",
        context=claimed_context(config, "max_position_embeddings", "n_positions"),
    )


FAMILIES = (Family("gptj", ("gptj",), describe, "GPT-J"),)
