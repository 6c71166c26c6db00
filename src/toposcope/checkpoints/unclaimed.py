"""Tensors of attention that a model's description does not use.

An attention module of which some tensors are used and one is not is read wrongly as likely as not: a gate, a sink, a
norm, a bias changes what its heads do. Such a file is refused. A module of which nothing is used (a vision tower, a
layer beyond those that the configuration counts) is listed as skipped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from toposcope.checkpoints.decode import ROWS
from toposcope.checkpoints.source import TensorInfo, TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec, Skipped, claimed, linears
from toposcope.core.errors import UnknownFamily
from toposcope.core.printable import printable

_MODULE = re.compile(r".*(attn|attention)$", re.IGNORECASE)  # the name of a module of attention
_FLAT = re.compile(r"attn_\w+$", re.IGNORECASE)  # GGUF has no module: attn_q, attn_output
_MAP = re.compile(r"(q|k|v)_proj$|query$|w?qkv$|in_proj_weight$", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
# Parts of a quantised weight, beside it in its map's module, which the weight's reader has put together.
_QUANTISATION = re.compile(
    r"weight_?(scale\w*|format|packed|shape|zero_point|global_scale|g_idx)$|(in|out)put_(global_)?scale$|SCB$|CB$|qweight$"
    r"|qzeros$|scales$|g_idx$|(weight\.)?(absmax|quant_map|nested_\w+|quant_state\.\w+)$"
)
_CACHE_SCALE = re.compile(r"(^|\.)(kv?|v|q)_(scale|zero_point)$")  # of keys and values in a cache: one number
_FREQUENCIES = re.compile(r"(^|[._])inv_freq$")
# computed, in whatever file
_CACHED = re.compile(r"(^|\.)(cos_cached|sin_cached|embed_positions|position_ids|attn_rot_embd\.weight)$")
_MASK = re.compile(r"(^|\.)(bias|causal_mask|mask|attn_mask)$")  # of a shape that no bias of a map has
_MASKED = re.compile(r"(^|\.)masked_bias$")  # the one number that stands for minus infinity
_CLOSE, _CLOSE_ROUNDED = 1e-3, 0.02  # how far stored frequencies may be off, the second in half precision


def is_attention(name: str) -> bool:
    """Whether a tensor's name is that of a part of attention."""
    return _module_of(name) is not None


def not_understood(spec: ModelSpec, source: TensorSource, *, forced: bool = False) -> ModelSpec:
    """The description with one `Skipped` entry per kind of attention tensor in modules of which nothing is used.

    An unused tensor in a module that is used is refused. `forced`: the user named the family, so frequencies that the
    file holds are held against those in force too (elsewhere `check` does), and an RMS norm must have no bias.
    """
    used = claimed(spec) | {name.partition(ROWS)[0] for name in source.ledger.lines}
    used |= {name for skipped in spec.skipped for name in skipped.tensors}
    maps = {linear.weight for layer in spec.layers for linear in linears(layer)}
    modules = {_module_of(name) for name in maps} - {None}
    heads = [name.partition("{head}")[0] for name in used if "{head}" in name]
    kinds: dict[str, list[str]] = defaultdict(list)
    strange: list[str] = []
    for name in sorted(set(source.names()) - used):
        if forced and _FREQUENCIES.search(name):
            strange += [] if _in_force(spec, source, name) else [name]
        elif (module := _module_of(name)) is None or name.startswith(tuple(heads)):
            continue
        elif module in modules:
            beside = name.rpartition(".weight.")[0] or name.rpartition(".")[0]
            part = f"{beside}.weight" in maps and _QUANTISATION.match(name.removeprefix(f"{beside}."))
            strange += [] if part or _harmless(source.info(name)) else [name]
        elif len(source.info(name).shape) == 2:
            kinds[_NUMBER.sub("N", name)].append(name)
    if forced:
        strange += [name for layer in spec.layers for name in _biases_of_rms(layer) if name in source.names()]
    if strange:
        raise _refused(spec, source, strange)
    found = tuple(
        Skipped(kind, "an attention tensor that this family's adapter does not use", tuple(names))
        for kind, names in kinds.items()
    )
    return replace(spec, skipped=spec.skipped + found)


def _biases_of_rms(layer: LayerSpec) -> list[str]:
    """What only a layer norm has: a file that holds it was not made with an RMS norm."""
    norms = (layer.input_norm, layer.output_norm, layer.residual_norm, layer.q_norm, layer.k_norm)
    return [norm.bias for norm in norms if norm is not None and norm.kind == "rms" and norm.bias is not None]


def _module_of(name: str) -> str | None:
    """The module of attention that a tensor belongs to: the first after the layer's number that is named so."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    for start in dict.fromkeys((numbers[-1] if numbers else 0, 0)):
        for place in range(start, len(parts)):
            if _MODULE.match(parts[place]):
                return ".".join(parts[: place + 1])
            if _FLAT.match(parts[place]) or _MAP.match(parts[place]):
                return ".".join((*parts[:place], "attn"))
    return None


def _harmless(info: TensorInfo) -> bool:
    """Whether a tensor is known to change nothing that heads do: a mask, or what a cache holds or needs."""
    if _FREQUENCIES.search(info.name) or _CACHED.search(info.name):
        return True
    if _CACHE_SCALE.search(info.name) and set(info.shape) <= {1}:
        return True
    square = len(info.shape) in (2, 4) and info.shape[-1] == info.shape[-2] and set(info.shape[:-2]) <= {1}
    return bool((_MASK.search(info.name) and square) or (_MASKED.search(info.name) and set(info.shape) <= {1}))


def _in_force(spec: ModelSpec, source: TensorSource, name: str) -> bool:
    """Whether the frequencies that a file holds are those of one of the description's rotations."""
    rotations = [layer.encoding.rotary for layer in spec.layers if layer.encoding.rotary is not None]
    stored = np.sort(source.read(name).astype(np.float64).reshape(-1))
    rounded = source.info(name).dtype.upper() not in ("F32", "F64", "FLOAT32", "FLOAT64")
    for rotary in {id(each): each for each in rotations}.values():
        for context in (None, spec.context):
            mine = np.sort(np.asarray(rotary.frequencies(context), dtype=np.float64))
            if mine.shape == stored.shape and np.allclose(
                stored, mine, rtol=_CLOSE_ROUNDED if rounded else _CLOSE, atol=0
            ):
                return True
    return False


def _refused(spec: ModelSpec, source: TensorSource, strange: Collection[str]) -> UnknownFamily:
    kinds = list(dict.fromkeys(_NUMBER.sub("N", name) for name in strange))
    shown = ", ".join(f"'{printable(kind)}'" for kind in kinds[:4])
    return UnknownFamily(
        f"{printable(source.path)} holds {shown}{', ...' if len(kinds) > 4 else ''}, which belong to its attention "
        f"and which the family '{spec.family}' does not have or has otherwise: its heads would be wrong. "
        "It is of another architecture ('toposcope ls families')."
    )
