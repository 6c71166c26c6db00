"""GPT-2 and its next of kin with a learned table of positions: GPTBigCode (StarCoder 1), GPT-Neo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import GPT2_SIZES, Config, learned_table
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.core.errors import BadConfig

GPT2 = Table(
    family="gpt2",
    defaults={"n_layer": 12, "n_embd": 768, "n_head": 12},
    sizes={
        "layers": (*GPT2_SIZES["layers"], "num_layers"),
        "width": GPT2_SIZES["width"],
        "heads": (*GPT2_SIZES["heads"], "num_heads"),
    },
    grouped=False,
    eps_keys=("layer_norm_epsilon",),
    eps=1e-5,
    context=("max_position_embeddings", "n_positions", "n_ctx"),
    layer="h.{}.",
    linear=("attn.c_attn", "attn.c_proj"),
    transposed=True,  # stored as (in, out), as the original's Conv1D does
    norm="layer",
    input_norm="ln_1",
    embedding="wte",
)
BIGCODE = replace(GPT2, family="gpt_bigcode", transposed=False)
GPT_NEO = replace(
    GPT2,
    family="gpt_neo",
    defaults={"num_layers": 24, "hidden_size": 2048, "num_heads": 16},
    context=("max_position_embeddings",),
    linear=(
        "attn.attention.q_proj",
        "attn.attention.k_proj",
        "attn.attention.v_proj",
        "attn.attention.out_proj",
    ),
    transposed=False,
)


def describe(config: Config, source: TensorSource, *, table: Table = GPT2) -> ModelSpec:
    """The plain GPT-2 layout; `table` is that of a relative."""
    draft = table.draft(config, source)
    scale = draft.sizes.head_dim**-0.5 if config.flag("scale_attn_weights", default=True) else 1.0
    by_depth = config.flag("scale_attn_by_inverse_layer_idx", default=False)
    return draft.spec(
        learned_table(source, f"{draft.root}wpe.weight"),
        lambda layer, at: replace(layer, scale=scale / (layer.index + 1) if by_depth else scale),
    )


def describe_bigcode(config: Config, source: TensorSource) -> ModelSpec:
    """GPTBigCode: GPT-2 with ordinary linear maps; one key and value for all heads, or a fused map sorted by head."""
    spec = describe(config, source, table=BIGCODE)
    shared = config.flag("multi_query", default=True)

    def changed(layer: LayerSpec) -> LayerSpec:
        return replace(layer, kv_heads=1) if shared else replace(layer, layout="per_head")

    return replace(spec, layers=tuple(changed(layer) for layer in spec.layers))


def describe_neo(config: Config, source: TensorSource) -> ModelSpec:
    """GPT-Neo: separate projections, logits that are not scaled, and layers that see a window only."""
    draft = GPT_NEO.draft(config, source)
    window = config.integer("window_size", default=256)
    kinds = _attention_kinds(config, draft.sizes.layers)

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        return replace(layer, scale=1.0, reach=window - 1 if kinds[layer.index] == "local" else None)

    return draft.spec(learned_table(source, f"{draft.root}wpe.weight"), vary)


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
