"""The rotary settings of a model, from its Hugging Face configuration, and where each of them stood.

Older files hold `rope_theta` and `rope_scaling`; newer ones `rope_parameters`, flat or one mapping per layer type.
Files are edited by hand and by tools, so the two may stand side by side and disagree. What is in force here is what
transformers puts in force:

1. `rope_scaling`, where it says anything, replaces a flat `rope_parameters`; it is laid over a nested one (Gemma 3:
   for the full-attention layers; ModernBERT: for all).
2. A base or fraction inside that mapping goes before the one at the top of the file.
3. The original context at the top of the file (Phi-3) goes before the one in a flat mapping; a nested mapping ignores
   it. Where none is given, it is `max_position_embeddings`.
4. `dynamic` measures by `max_position_embeddings` and never reads an original context.
5. Yarn's `truncate` is read beside the layer types only: inside a layer type's mapping it has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from toposcope.core.config import optional_flag, optional_integer, optional_number, optional_numbers
from toposcope.core.errors import BadConfig, BadEncoding
from toposcope.encodings.config_place import Place, find_place, kind_of, scales
from toposcope.encodings.record import NONE, Encoding, Pairing, plain
from toposcope.encodings.rotary import rope
from toposcope.encodings.scalings import READS, STRETCHED_FROM_ORIGINAL

_LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta")
_BASES = ("rope_theta", "rotary_emb_base")
_FRACTIONS = ("partial_rotary_factor", "rotary_pct", "rope_pct")
_ORIGINAL = "original_max_position_embeddings"
_ALL_READ = tuple(dict.fromkeys(key for keys in READS.values() for key in keys))


@dataclass(frozen=True)
class ConfigValue:
    """One value and the place in the configuration it was read from ('default' where nothing was written)."""

    value: Any
    source: str


@dataclass(frozen=True)
class RopeSettings:
    """The rotary settings in force for a layer type, and what is odd about the way they are written.

    `settings` holds `base`, `scaling`, `partial`, and where they apply `context`, `original_context`, `rotary_dim`,
    `factor` and the scaling's other parameters, each with its source. `rotates` is False where the layer type is
    declared without rotation. `remarks` are sentences for a reader: contradictions, values without effect, values
    that had to be assumed.
    """

    layer_type: str | None
    rotates: bool
    settings: Mapping[str, ConfigValue] = field(default_factory=lambda: MappingProxyType({}))
    remarks: tuple[str, ...] = ()

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting, or `default` where it was not found."""
        found = self.settings.get(name)
        return default if found is None else found.value


def rope_settings(
    config: Mapping[str, Any],
    layer_type: str | None = None,
    *,
    default_base: float = 10000.0,
    default_partial: float = 1.0,
) -> RopeSettings:
    """The rotary settings a configuration puts in force for `layer_type`, and where each was found."""
    place = find_place(config, layer_type)
    if place.values is None:
        return RopeSettings(layer_type, False, remarks=place.remarks)
    kind, kind_key, remarks = kind_of(place)
    remarks = [*place.remarks, *remarks]
    found = {"scaling": ConfigValue(kind, f"{place.name}.{kind_key}" if kind_key else "default")}
    found["base"] = _base(config, place, layer_type, default_base, remarks)
    found["partial"] = _partial(config, place, default_partial, remarks)
    _add(found, "rotary_dim", optional_integer(config, "rotary_dim"), "rotary_dim")
    _add(found, "context", optional_integer(config, "max_position_embeddings"), "max_position_embeddings")
    for key in READS[kind]:
        _add(found, key, _read(place, key, remarks), f"{place.name}.{key}")
    _add_original(found, config, place, kind, remarks)
    remarks += _oddities(found, place, kind)
    return RopeSettings(layer_type, True, MappingProxyType(found), tuple(remarks))


def rope_from_config(
    config: Mapping[str, Any],
    head_dim: int,
    *,
    layer_type: str | None = None,
    pairing: Pairing = "half",
    channel_offset: int = 0,
    default_base: float = 10000.0,
    default_partial: float = 1.0,
    rotary_dim: int | None = None,
    whole_heads: bool = False,
) -> Encoding:
    """The rotary encoding that a configuration puts in force for heads of `head_dim` channels.

    `rotary_dim` overrules what the file says about the number of rotary channels. `whole_heads`: the architecture
    never reads what fraction of a head is to turn. A layer type declared with None does not rotate: the result is
    `NONE`. What is odd about the settings is found in the encoding's notes.
    """
    found = rope_settings(config, layer_type, default_base=default_base, default_partial=default_partial)
    if not found.rotates:
        return NONE
    kind, partial = found.get("scaling"), found.get("partial")
    remarks = list(found.remarks)
    if whole_heads and partial != 1 and kind != "proportional":
        where = found.settings["partial"].source
        if kind != "default":  # transformers itself fails: cosines for some channels, queries with all of them
            raise BadConfig(
                f"{where} is {plain(partial)} beside {kind} scaling, but this architecture rotates whole heads: "
                f"such a model cannot be run. Remove {where}."
            )
        remarks.append(f"{where} has no effect: this architecture rotates whole heads.")
        partial = 1.0
    width: dict[str, Any]
    channels = rotary_dim if rotary_dim is not None else found.get("rotary_dim")
    if kind == "proportional":
        width = {"rotary_dim": channels, "partial": partial}
    elif channels is not None:
        width = {"rotary_dim": channels}
        declared = found.settings["partial"]
        if rotary_dim is None and declared.source != "default" and int(head_dim * partial) != channels:
            remarks.append(f"rotary_dim is {channels}, but {declared.source} is {plain(partial)}; rotary_dim counts.")
    else:
        channels = int(head_dim * partial)
        # an odd number of channels is rounded up to whole pairs, but the exponents keep the odd number
        width = {"rotary_dim": channels + channels % 2, "frequency_dim": channels if channels % 2 else None}
    given = {key: found.get(key) for key in READS[kind] if key in found.settings}
    try:
        made = rope(
            head_dim,
            base=found.get("base"),
            pairing=pairing,
            channel_offset=channel_offset,
            scaling=kind,
            original_context=found.get("original_context"),
            context=found.get("context"),
            **width,
            **given,
        )
    except BadEncoding as error:
        raise BadConfig(f"the rotary settings of this model's configuration do not work: {error}") from error
    return replace(made, notes=tuple(remarks))


def _base(
    config: Mapping[str, Any], place: Place, layer_type: str | None, default_base: float, remarks: list[str]
) -> ConfigValue:
    keys = (*_LOCAL_BASES, *_BASES) if layer_type == "sliding_attention" else ("global_rope_theta", *_BASES)
    inside = optional_number(place.values or {}, "rope_theta", place.name)
    candidates = [ConfigValue(inside, f"{place.name}.rope_theta")] + [
        ConfigValue(optional_number(config, key), key) for key in keys
    ]
    present = [candidate for candidate in candidates if candidate.value is not None]
    if not present:
        lost = optional_number(place.ignored, "rope_theta", "rope_parameters")
        if lost is not None:
            remarks.append(f"the base {plain(lost)} in rope_parameters is lost, since rope_scaling replaces it.")
        if place.values or place.nested:
            remarks.append(f"no rotary base is in force in this file; {plain(default_base)} is assumed.")
        return ConfigValue(float(default_base), "default")
    if not place.nested and present[0].source not in _LOCAL_BASES:  # elsewhere bases are meant to differ
        remarks += _disagreements(present)
    return present[0]


def _partial(config: Mapping[str, Any], place: Place, default: float, remarks: list[str]) -> ConfigValue:
    inside = optional_number(place.values or {}, "partial_rotary_factor", place.name)
    candidates = [ConfigValue(inside, f"{place.name}.partial_rotary_factor")]
    candidates += [ConfigValue(optional_number(config, key), key) for key in _FRACTIONS]
    present = [candidate for candidate in candidates if candidate.value is not None]
    chosen = present[0] if present else ConfigValue(float(default), "default")
    if not 0 < chosen.value <= 1:
        raise BadConfig(f"{chosen.source} must be above 0 and at most 1, got {plain(chosen.value)}.")
    remarks += _disagreements(present)
    return chosen


def _disagreements(present: list[ConfigValue]) -> list[str]:
    return [
        f"{present[0].source} is {plain(present[0].value)} but {other.source} is {plain(other.value)}; "
        f"{present[0].source} is in force."
        for other in present[1:]
        if other.value != present[0].value
    ]


def _read(place: Place, key: str, remarks: list[str]) -> Any:
    values = place.values or {}
    if key in ("short_factor", "long_factor"):
        return optional_numbers(values, key, place.name)
    if key != "truncate":
        return optional_number(values, key, place.name)
    if not place.nested:
        return optional_flag(values, key, place.name)
    inside, beside = optional_flag(values, key, place.name), optional_flag(place.beside, key, "rope_parameters")
    if inside is not None and inside != (True if beside is None else beside):
        remarks.append(f"{place.name}.truncate has no effect in transformers, which reads it beside the layer types.")
    return beside


def _add_original(
    found: dict[str, ConfigValue], config: Mapping[str, Any], place: Place, kind: str, remarks: list[str]
) -> None:
    inside, top = optional_integer(place.values or {}, _ORIGINAL, place.name), optional_integer(config, _ORIGINAL)
    context = found.get("context")
    if kind not in STRETCHED_FROM_ORIGINAL:
        if kind == "dynamic" and context is not None:
            found["original_context"] = context
        if inside is not None and (kind != "dynamic" or context is None or inside != context.value):
            remarks.append(f"{place.name}.{_ORIGINAL} has no effect: {kind} RoPE does not read it.")
    elif top is not None and not place.nested:
        found["original_context"] = ConfigValue(top, _ORIGINAL)
        if inside is not None and inside != top:
            remarks.append(f"{_ORIGINAL} is {top} but {place.name}.{_ORIGINAL} is {inside}; the former is in force.")
    elif inside is not None:
        found["original_context"] = ConfigValue(inside, f"{place.name}.{_ORIGINAL}")
    elif context is not None:
        found["original_context"] = context
        remarks.append(
            f"{place.name} does not say {_ORIGINAL}; max_position_embeddings ({context.value}) stands in for it, "
            "so the scaling starts from the length it may have been meant to reach."
        )


def _oddities(found: Mapping[str, ConfigValue], place: Place, kind: str) -> list[str]:
    values, remarks = place.values or {}, []
    factor, original, context = (
        found[key].value if key in found else None for key in ("factor", "original_context", "context")
    )
    if factor is None and kind in ("linear", "dynamic", "ntk", "llama3"):
        raise BadConfig(f"{place.name} declares {kind} scaling without a factor. Add {place.name}.factor.")
    if factor is None and kind in ("yarn", "longrope") and original == context:
        remarks.append(f"{place.name} declares {kind} scaling without a factor, and the lengths imply none.")
    if factor == 1 and kind != "longrope":
        remarks.append(f"{place.name} declares {kind} scaling with factor 1, which changes nothing.")
    if factor is not None and factor < 1:
        remarks.append(f"{place.name}.factor is {plain(factor)}: a factor below 1 shortens the context.")
    if kind == "yarn" and factor and original and context and context / original not in (1, factor):
        remarks.append(
            f"{place.name}.factor is {plain(factor)}, but max_position_embeddings ({context}) is "
            f"{context / original:.6g} times the original context ({original})."
        )
    told = ["factor"] if kind == "default" and scales(values.get("factor")) else []  # by `kind_of`
    unread = [key for key in _ALL_READ if values.get(key) is not None and key not in (*READS[kind], *told)]
    if unread and found["scaling"].source != "default":
        remarks.append(f"{place.name} holds {', '.join(unread)}, which {kind} RoPE does not read.")
    if values.get("mrope_section") is not None:
        remarks.append("the axes of mrope_section share one position in a text, which is what is analysed here.")
    return remarks


def _add(found: dict[str, ConfigValue], name: str, value: Any, source: str) -> None:
    if value is not None:
        found[name] = ConfigValue(value, source)
