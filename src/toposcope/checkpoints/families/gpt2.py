"""GPT-2 and its next of kin with a learned table of positions: GPTBigCode (StarCoder 1), GPT-Neo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.core.errors import BadConfig


def describe(
    config: Config, source: TensorSource, *, family: str = "gpt2", transposed: bool = True, eps: float = 1e-5
) -> ModelSpec:
    """The plain GPT-2 layout; relatives start from this and replace what differs.

    `transposed` says that linear maps are stored as (in, out), as the original's Conv1D does.
    """
    root = find_root(source, "h.0.attn.c_attn.weight")
    sizes = _sizes(config.with_defaults(n_layer=12, n_embd=768, n_head=12))
    eps = config.number("layer_norm_epsilon", default=eps)
    scale = sizes.head_dim**-0.5 if config.flag("scale_attn_weights", default=True) else 1.0
    by_depth = config.flag("scale_attn_by_inverse_layer_idx", default=False)
    encoding = learned_table(source, f"{root}wpe.weight")

    def layer(i: int) -> LayerSpec:
        at = f"{root}h.{i}."
        return LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=scale / (i + 1) if by_depth else scale,
            causal=True,
            encoding=encoding,
            qkv=Linear.at(f"{at}attn.c_attn", transposed=transposed),
            layout="stacked",
            o=Linear.at(f"{at}attn.c_proj", transposed=transposed),
            input_norm=NormSpec.at("layer", f"{at}ln_1", eps),
        )

    return ModelSpec(
        family=family,
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}wte.weight",
        context=claimed_context(config, "max_position_embeddings", "n_positions", "n_ctx"),
    )


def describe_bigcode(config: Config, source: TensorSource) -> ModelSpec:
    """GPTBigCode: GPT-2 with ordinary linear maps; one key and value for all heads, or a fused map sorted by head."""
    spec = describe(config, source, family="gpt_bigcode", transposed=False)
    shared = config.flag("multi_query", default=True)

    def changed(layer: LayerSpec) -> LayerSpec:
        return replace(layer, kv_heads=1) if shared else replace(layer, layout="per_head")

    return replace(spec, layers=tuple(changed(layer) for layer in spec.layers))


def describe_neo(config: Config, source: TensorSource) -> ModelSpec:
    """GPT-Neo: separate projections, logits that are not scaled, and layers that see a window only."""
    root = find_root(source, "h.0.attn.attention.q_proj.weight")
    sizes = _sizes(config.with_defaults(num_layers=24, hidden_size=2048, num_heads=16))
    eps = config.number("layer_norm_epsilon", default=1e-5)
    window = config.integer("window_size", default=256)
    kinds = _attention_kinds(config, sizes.layers)
    encoding = learned_table(source, f"{root}wpe.weight")

    def layer(i: int) -> LayerSpec:
        at = f"{root}h.{i}."
        return LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=1.0,
            causal=True,
            reach=window - 1 if kinds[i] == "local" else None,
            encoding=encoding,
            q=Linear.at(f"{at}attn.attention.q_proj"),
            k=Linear.at(f"{at}attn.attention.k_proj"),
            v=Linear.at(f"{at}attn.attention.v_proj"),
            o=Linear.at(f"{at}attn.attention.out_proj"),
            input_norm=NormSpec.at("layer", f"{at}ln_1", eps),
        )

    return ModelSpec(
        family="gpt_neo",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}wte.weight",
        context=claimed_context(config, "max_position_embeddings"),
    )


def _sizes(config: Config) -> Sizes:
    return Sizes.of(
        config,
        layers=("num_hidden_layers", "n_layer", "num_layers"),
        width=("hidden_size", "n_embd"),
        heads=("num_attention_heads", "n_head", "num_heads"),
    )


def _attention_kinds(config: Config, layers: int) -> list[Any]:
    """'global' or 'local' for each layer, from runs such as [[["global", "local"], 12]]."""
    runs = config.get("attention_types")
    if runs is None:
        runs = [[["global", "local"], layers // 2 + 1]]
    try:
        kinds = [kind for pattern, times in runs for _ in range(min(times, layers)) for kind in pattern]
    except (TypeError, ValueError) as error:
        raise BadConfig(
            f"'attention_types' in {config.where} is {runs!r}; expected runs such as [[['global', 'local'], 12]]."
        ) from error
    if len(kinds) < layers or not set(kinds) <= {"global", "local"}:
        raise BadConfig(
            f"'attention_types' in {config.where} is {runs!r}; expected 'global' or 'local' for {layers} layers."
        )
    return kinds


FAMILIES = (
    Family("gpt2", ("gpt2",), describe, "GPT-2"),
    Family("gpt_bigcode", ("gpt_bigcode",), describe_bigcode, "GPTBigCode: SantaCoder and the first StarCoder"),
    Family("gpt_neo", ("gpt_neo",), describe_neo, "GPT-Neo"),
)
