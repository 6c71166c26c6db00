"""Qwen 3-Next and 3.5: attention with an output gate, a quarter of each head turning, among linear layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import GateSpec, LayerSpec, Linear, ModelSpec, RowPattern

QWEN3_NEXT = Table(
    family="qwen3_next",
    defaults={"head_dim": 256, "num_key_value_heads": 2},
    some=True,
    norm_offset=1.0,
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    rope={"default_partial": 0.25},
)
QWEN3_5 = replace(QWEN3_NEXT, family="qwen3_5", defaults={"head_dim": 256, "num_key_value_heads": 4})
QWEN3_5_MOE = replace(QWEN3_NEXT, family="qwen3_5_moe")


def describe(table: Table, config: Config, source: TensorSource) -> ModelSpec:
    """One map holds for each head its queries, then its gates."""
    draft = table.draft(config, source)
    wide, heads = draft.sizes.head_dim, draft.sizes.heads
    queries, gates = (RowPattern(start, wide, heads, 2 * wide) for start in (0, wide))

    def vary(layer: LayerSpec, at: str) -> LayerSpec:
        both = Linear.at(f"{at}self_attn.q_proj")
        return replace(layer, q=replace(both, rows=queries), gate=GateSpec(replace(both, rows=gates), "sigmoid"))

    return draft.spec(draft.rope(), vary)


FAMILIES = (
    Family(
        "qwen3_next", ("qwen3_next",), partial(describe, QWEN3_NEXT), "Qwen 3-Next: gated attention, linear layers"
    ),
    Family(
        "qwen3_5",
        ("qwen3_5_text",),
        partial(describe, QWEN3_5),
        "Qwen 3.5 (the text part): gated attention, linear layers",
    ),
    Family(
        "qwen3_5_moe",
        ("qwen3_5_moe_text",),
        partial(describe, QWEN3_5_MOE),
        "Qwen 3.5 mixtures of experts (the text part)",
    ),
)
