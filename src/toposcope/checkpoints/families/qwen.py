"""Qwen 2 and 3: biased projections or per-head norms of queries and keys, and a sliding window on some layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table, window_reach, windows
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec

WINDOWS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
NORMED = ("self_attn.q_norm", "self_attn.k_norm")  # of each head, before it turns

QWEN2 = Table(family="qwen2", defaults={"num_key_value_heads": 32, **WINDOWS})
QWEN2_MOE = Table(family="qwen2_moe", defaults={"num_key_value_heads": 16, **WINDOWS})
QWEN3 = Table(family="qwen3", defaults={"head_dim": 128, "num_key_value_heads": 32, **WINDOWS}, qk_norm=NORMED)
QWEN3_MOE = Table(family="qwen3_moe", defaults={"num_key_value_heads": 4, **WINDOWS}, qk_norm=NORMED)
DOTS1 = Table(
    family="dots1",
    defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 62, "use_sliding_window": True},
    qk_norm=NORMED,
)


def describe(table: Table, sliding: Callable[[int, int], bool], config: Config, source: TensorSource) -> ModelSpec:
    """`sliding(index, max_window_layers)` says which layers slide, where windows are used and no list says it."""
    draft = table.draft(config, source)
    reach = window_reach(draft.config) if draft.config.flag("use_sliding_window", default=False) else None
    most = draft.config.integer("max_window_layers", least=0)
    return draft.spec(draft.rope(), windows(draft.config, lambda index: sliding(index, most), reach))


def _upper(index: int, most: int) -> bool:
    return index >= most


def _lower_even(index: int, most: int) -> bool:
    return index % 2 == 0 and index < most


def _all(index: int, most: int) -> bool:
    return True


FAMILIES = (
    Family(
        "qwen2",
        ("qwen2",),
        partial(describe, QWEN2, _upper),
        "Qwen 2 and 2.5: biased projections, windows on the upper layers",
    ),
    Family(
        "qwen2_moe", ("qwen2_moe",), partial(describe, QWEN2_MOE, _lower_even), "Qwen 1.5 and 2 mixtures of experts"
    ),
    Family("qwen3", ("qwen3",), partial(describe, QWEN3, _upper), "Qwen 3: queries and keys normalised per head"),
    Family("qwen3_moe", ("qwen3_moe",), partial(describe, QWEN3_MOE, _all), "Qwen 3 mixtures of experts"),
    Family("dots1", ("dots1",), partial(describe, DOTS1, _upper), "dots.llm1: Qwen 3 as a mixture of experts"),
)
