"""Where in a configuration the rotary settings of a layer type stand, and which scaling they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeGuard

from toposcope.core.config import optional_part
from toposcope.core.errors import BadConfig, did_you_mean
from toposcope.encodings.record import plain
from toposcope.encodings.scalings import SCALINGS

LEGACY_KINDS: Mapping[str, str] = MappingProxyType(
    {"su": "longrope", "mrope": "default", "dynamic_ntk": "dynamic", "ntk_aware": "ntk"}
)
NO_SCALING = "no scaling is in force"  # how a remark begins that a written scaling has no effect
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Place:
    """The mapping in force (None: the layer type does not rotate), its name, and what stood around it."""

    values: Mapping[str, Any] | None
    name: str
    nested: bool = False
    beside: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)  # the mapping that holds the layer types
    ignored: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)  # a flat rope_parameters that is replaced
    remarks: tuple[str, ...] = ()


def find_place(config: Mapping[str, Any], layer_type: str | None) -> Place:
    """The mapping that decides for `layer_type`."""
    old, new = optional_part(config, "rope_scaling"), optional_part(config, "rope_parameters")
    if old and not _is_nested(old) and _is_nested(new):
        return _overlaid(config, old, new, layer_type)
    name, values = ("rope_scaling", old) if old else ("rope_parameters", new)
    if _is_nested(values):
        return _entry(values, name, layer_type)
    if old and layer_type == "sliding_attention" and "rope_local_base_freq" in config:
        return Place(_EMPTY, name)  # Gemma 3 stretches its full-attention layers only
    if old and new and dict(old) != dict(new):
        remark = "rope_scaling and rope_parameters are both present and differ; rope_scaling is in force."
        return Place(old, name, ignored=new, remarks=(remark,))
    return Place(values, name)


def kind_of(place: Place) -> tuple[str, str | None, list[str]]:
    """The scaling a place names, the key that names it (None: nothing does), and remarks."""
    values, remarks = place.values or _EMPTY, []
    key = "rope_type" if values.get("rope_type") is not None else "type"
    written = values.get(key)
    if written is None:
        return "default", None, _unscaled(place, "it names no rope_type")
    for each in ("rope_type", "type"):
        if values.get(each) is not None and not isinstance(values[each], str):
            raise BadConfig(f"{place.name}.{each} must be a name, got {values[each]!r}.")
    other = values.get("type") or written
    if LEGACY_KINDS.get(other, other) != LEGACY_KINDS.get(written, written):
        remarks.append(f"{place.name} says rope_type '{written}' and type '{other}'; rope_type is in force.")
    kind = LEGACY_KINDS.get(written, written)
    if kind == "yarn" and values.get("long_factor") is not None:
        kind = "longrope"  # early Phi-3 files call it yarn
    if kind not in SCALINGS:
        known = did_you_mean(written, [*SCALINGS, *LEGACY_KINDS])
        raise BadConfig(f"{place.name}.{key} is '{written}', a RoPE scaling that is not known here. {known}")
    if kind == "default":
        remarks += _unscaled(place, f"{key} is '{written}'")
    return kind, key, remarks


def scales(factor: Any) -> TypeGuard[float]:
    """Whether a factor asks for a scaling."""
    return isinstance(factor, int | float) and factor != 1


def _unscaled(place: Place, why: str) -> list[str]:
    """A remark where a factor is set and no scaling goes by it."""
    factor = (place.values or _EMPTY).get("factor")
    return [f"{NO_SCALING}, though {place.name} sets factor {plain(factor)}: {why}."] if scales(factor) else []


def _is_nested(values: Mapping[str, Any]) -> bool:
    """One mapping (or None, for no rotation) per layer type, instead of the settings themselves."""
    if any(isinstance(value, Mapping) for value in values.values()):
        return True
    return any(key.endswith("_attention") and value is None for key, value in values.items())


def _entry(values: Mapping[str, Any], name: str, layer_type: str | None) -> Place:
    entries = {
        key: value
        for key, value in values.items()
        if isinstance(value, Mapping) or (value is None and key.endswith("_attention"))
    }
    if layer_type is None and len(entries) > 1:
        raise BadConfig(f"{name} differs by layer type ({', '.join(entries)}); say which layer type is meant.")
    if layer_type is None:
        layer_type = next(iter(entries))
    if layer_type not in entries:
        raise BadConfig(f"{name} has no entry for layer type '{layer_type}'. {did_you_mean(layer_type, entries)}")
    return Place(entries[layer_type], f"{name}.{layer_type}", nested=True, beside=values)


def _overlaid(
    config: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any], layer_type: str | None
) -> Place:
    inner = _entry(new, "rope_parameters", layer_type)
    if layer_type == "sliding_attention" and "local_rope_theta" not in config:
        return inner
    remark = f"rope_scaling and rope_parameters are both present; rope_scaling is laid over {inner.name}."
    merged = {**(inner.values or {}), **old}
    return Place(merged, inner.name, nested=True, beside=new, remarks=(remark,))
