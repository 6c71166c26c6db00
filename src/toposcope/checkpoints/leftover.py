"""What a checkpoint holds that its adapter did not claim: attention under names it does not know."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace

from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LatentSpec, LayerSpec, Linear, ModelSpec, NormSpec, Skipped

_ATTENTION = re.compile(
    r"(^|[._])(attn|attention|self_attn|q_proj|k_proj|v_proj|query|qkv|wqkv|in_proj_weight|attn_q|attn_k|attn_v)([._]|$)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")


def not_understood(spec: ModelSpec, source: TensorSource) -> ModelSpec:
    """The description with one `Skipped` entry per kind of attention tensor that no layer uses."""
    claimed = {name for layer in spec.layers for name in _names(layer)}
    claimed |= {*spec.tables, *(name for skipped in spec.skipped for name in skipped.tensors)}
    claimed.update(name for skipped in spec.skipped for name in skipped.tensors)
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(source.names()) - claimed):
        if _ATTENTION.search(name) and len(source.info(name).shape) == 2:
            kinds[_NUMBER.sub("N", name)].append(name)
    found = tuple(
        Skipped(kind, "an attention tensor that this family's adapter does not use", tuple(names))
        for kind, names in kinds.items()
    )
    return replace(spec, skipped=spec.skipped + found)


def _names(part: LayerSpec | Linear | NormSpec | LatentSpec) -> Iterator[str]:
    for entry in fields(part):
        value = getattr(part, entry.name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, Linear | NormSpec | LatentSpec):
            yield from _names(value)
