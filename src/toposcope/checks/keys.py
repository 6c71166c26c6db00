"""Settings that nothing reads: keys that are nearly a rotary key, and rotary keys in places that are never looked at.

A configuration is a mapping that anyone may write into: a key that no code asks for is silently without effect, and a
model whose `rope_scalling` is lost runs well up to the length it was first trained on.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toposcope.checkpoints.families import choose_family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.view import Model
from toposcope.checks.findings import Finding
from toposcope.core.errors import ToposcopeError
from toposcope.core.printable import printable
from toposcope.encodings.config_place import LEGACY_KINDS, scales
from toposcope.encodings.scalings import READS, SCALINGS

PLACES = ("rope_scaling", "rope_parameters")
KINDS = ("rope_type", "type", "rope_scaling.rope_type")  # keys that name a scaling, and where one belongs
ORIGINAL = "original_max_position_embeddings"
NEAR = 0.86  # difflib's likeness from which a key may be another misspelt; one wrong letter in nine leaves 0.89
DEEPEST = 6  # mappings in mappings; what lies deeper is no setting

# read beside the sizes of a model, or of a part of it
_OF_A_MODEL = frozenset(
    [
        *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct", "rope_pct"),
        *("rotary_emb_base", "rotary_dim", "rope_local_base_freq", "local_rope_theta", "global_rope_theta"),
        *("qk_rope_head_dim", "max_position_embeddings", ORIGINAL, "sliding_window"),
    ]
)
# read inside rope_scaling and rope_parameters
_OF_A_SCALING = frozenset(key for keys in READS.values() for key in keys) | {
    "type",
    "rope_type",
    "rope_theta",
    ORIGINAL,
    "partial_rotary_factor",
    "mrope_section",
}
# of these names it is plain where they belong, also when they stand elsewhere
_ONLY_IN_A_SCALING = frozenset(
    ["rope_type", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale_all_dim"]
)
# what other programs call the same thing; no model of transformers reads them
_OTHER_NAMES = {
    "rope_base": "rope_theta",
    "rope_freq_base": "rope_theta",
    "rope_base_freq": "rope_theta",
    "rotary_theta": "rope_theta",
    "base_theta": "rope_theta",
    "rope_factor": "rope_scaling",
    "rope_scale": "rope_scaling",
    "rope_freq_scale": "rope_scaling",
    "rope_scaling_factor": "rope_scaling",
    "rope_scaling_type": "rope_scaling",
    "rope_params": "rope_parameters",
    "rope_config": "rope_parameters",
    "rotary_percent": "partial_rotary_factor",
}
# what some architecture reads, however near it is to another name
_OTHERS_READ = frozenset(
    [
        *("num_position_embeddings", "max_2d_position_embeddings", "left_max_position_embeddings"),
        *("right_max_position_embeddings", "t2u_max_position_embeddings", "max_source_positions"),
        *("max_target_positions", "sliding_windows", "sliding_window_size", "use_sliding_window"),
        *("sliding_window_pattern", "rotary_embedding_base", "layer_rope_theta", "compress_rope_theta", "rope_ratio"),
        *("position_embeddings_type", "position_embedding_type", "rope_interleave", "rope_scaling_layers"),
        "qk_nope_head_dim",
    ]
)
_LAYER_TYPES = frozenset(["full_attention", "sliding_attention", "chunked_attention", "linear_attention"])
_NO_SETTINGS = frozenset(
    [
        *("id2label", "label2id", "quantization_config", "task_specific_params", "generation_config", "auto_map"),
        *("lab", "quirks"),
    ]
)
_OTHER_SENSES = ("vision", "visual", "image", "audio", "speech", "video")


@dataclass(frozen=True)
class Unread:
    """A key that nothing reads: where it stands, what it holds, and the name that would be read.

    `factor` is the one set beside a key that seems to name a scaling.
    """

    place: str  # "" at the top, "text_config", "rope_scaling"
    key: str
    value: Any
    near: str
    factor: Any = None

    @property
    def path(self) -> str:
        return f"{self.place}.{self.key}" if self.place else self.key

    @property
    def scaling(self) -> str | None:
        """The scaling that it asks for, in words: 'its yarn scaling'; None where it asks for none."""
        if self.kind is not None:
            return f"its {self.kind} scaling"
        if self.near not in PLACES:
            return None
        if isinstance(self.value, Mapping):
            kind = self.value.get("rope_type") or self.value.get("type")
            named = kind if isinstance(kind, str) and _stretches(self.value) else None
            return f"its {printable(named, 40)} scaling" if named else None
        return None if self.value == 1 else f"the scaling that it asks for ({printable(self.value, 40)})"

    @property
    def kind(self) -> str | None:
        """The scaling that it names; None where it names none."""
        known = isinstance(self.value, str) and self.near in (*KINDS, *PLACES)
        name = LEGACY_KINDS.get(self.value, self.value) if known else "default"
        return str(name) if name in SCALINGS and name != "default" else None

    @property
    def for_kind(self) -> bool:
        """Whether it stands inside a scaling, where `rope_type` is read."""
        return self.near in KINDS[:2] and isinstance(self.value, str)

    @property
    def cure(self) -> str:
        """What to write instead: another name, or the mapping that a single value stands for."""
        if self.for_kind:
            needs = self.factor is None and "factor" in READS.get(self.kind or "", ()) and self.kind != "longrope"
            return f"Rename it to 'rope_type'{', and set factor' if needs else ''}."
        if self.near == KINDS[2] and self.kind is not None:
            return f'Write rope_scaling: {{"rope_type": "{self.kind}", ...}} in its place.'
        if self.near not in PLACES or isinstance(self.value, Mapping):
            return f"Rename it to '{self.near}' if that is what is meant."
        kind, factor = "…", "…"
        if isinstance(self.value, str):
            kind = f'"{printable(self.value, 40)}"'
        elif isinstance(self.value, int | float) and self.value:
            # llama.cpp's rope_freq_scale multiplies positions, where a factor divides them
            inverse = self.key == "rope_freq_scale"
            kind, factor = ('"linear"', f"{1 / self.value:g}") if inverse else (kind, f"{self.value:g}")
        mapping = f'{self.near}: {{"rope_type": {kind}, "factor": {factor}}}'
        return f"Write {mapping} in its place if that is what is meant."


def near_misses(config: Mapping[str, Any]) -> Iterator[Unread]:
    """Every key, at any depth, that nothing reads and that is nearly the name of a rotary setting."""
    yield from _below(config, "", 0)


def _below(values: Mapping[str, Any], place: str, depth: int) -> Iterator[Unread]:
    for key, value in values.items():
        if not isinstance(key, str) or value is None or value in ({}, [], "") or key in _NO_SETTINGS:
            continue
        near = _meant(key, value, values)
        if near is not None:
            yield Unread(place, key, value, near)
        elif key in PLACES and isinstance(value, Mapping):
            yield from _in_scaling(value, f"{place}.{key}" if place else key)
        elif isinstance(value, Mapping) and depth < DEEPEST:
            yield from _below(value, f"{place}.{key}" if place else key, depth + 1)


def _in_scaling(values: Mapping[str, Any], place: str) -> Iterator[Unread]:
    """The same inside rope_scaling or rope_parameters, flat or with one mapping per layer type."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _in_scaling(value, f"{place}.{key}")
        elif value is not None and key not in _OF_A_SCALING:
            near = _OTHER_NAMES.get(key, "")
            near = near if near in _OF_A_SCALING else _nearest(key, _OF_A_SCALING, least=0.8) or ""
            if not near and isinstance(value, str) and Unread(place, key, value, "rope_type").kind is not None:
                near = "" if any(isinstance(values.get(name), str) for name in KINDS[:2]) else "rope_type"
            said = near in KINDS[:2] and value in [values.get(name) for name in KINDS[:2]]
            if near and values.get(near) is None and not said:
                yield Unread(place, key, value, near, values.get("factor") if near in KINDS[:2] else None)


def _meant(key: str, value: Any, beside: Mapping[str, Any]) -> str | None:
    """What a key of a model's own level must have meant; None where it is read, foreign, or says nothing new."""
    if key in _OF_A_MODEL or key in _OTHERS_READ:
        return None
    if key in _ONLY_IN_A_SCALING:
        said = any(mentions(beside.get(place), key) for place in PLACES)
        return None if said else f"rope_scaling.{key}"
    near = _OTHER_NAMES.get(key) or _nearest(key, _OF_A_MODEL, least=NEAR)
    if near is None or beside.get(near) == value:
        return None
    inside = [beside[place].get(near) for place in PLACES if isinstance(beside.get(place), Mapping)]
    return None if value in inside else near


def _nearest(key: str, names: frozenset[str], least: float) -> str | None:
    plain = key.lower().replace("-", "_")
    found = difflib.get_close_matches(plain, sorted(names), n=1, cutoff=least)
    return found[0] if found else None


def mentions(values: Any, key: str) -> bool:
    """Whether a key is set in a mapping, or in one inside it."""
    if not isinstance(values, Mapping):
        return False
    return values.get(key) is not None or any(mentions(inner, key) for inner in values.values())


def unread(model: Model) -> Iterator[Finding]:
    """All findings about settings without effect."""
    scalings = {each.encoding.parameters.get("scaling", "default") for each in model.layers}
    misses = list(near_misses(model.config))
    for miss in misses:
        yield _missed(miss, scalings)
    yield from _layer_types(model)
    yield from _without_rotation(model)
    yield from _aside(model, told={miss.path for miss in misses})


def _missed(miss: Unread, in_force: Collection[str]) -> Finding:
    """A fault where a scaling is lost by it, a warning otherwise; `in_force` are the scalings of the layers."""
    unscaled = set(in_force) <= {"default"}
    evidence: dict[str, Any] = {"key": miss.path, "near": miss.near}
    name = f"'{printable(miss.path, 80)}' is not read"
    if miss.for_kind and (unscaled if miss.kind is None else miss.kind not in in_force):
        asks = miss.kind is not None or scales(miss.factor)
        factor = f"factor {miss.factor:g} is set" if scales(miss.factor) else ""
        says = ", and ".join(filter(None, (f"it names {miss.kind}" if miss.kind else "", factor)))
        lost = "no" if unscaled else f"its {miss.kind}"
        return Finding(
            "unknown-key",
            "fault" if asks else "warning",
            f"{name}, so {lost} scaling is {'' if unscaled else 'not '}in force" if asks else name,
            f"{says[:1].upper()}{says[1:]}." if says else f"It looks like '{miss.near}'.",
            miss.cure,
            evidence={**evidence, "scaling": miss.kind, "factor": miss.factor},
        )
    lost_scaling = miss.scaling if unscaled and not miss.for_kind else None
    return Finding(
        "unknown-key",
        "fault" if lost_scaling is not None and (isinstance(miss.value, Mapping) or miss.kind) else "warning",
        name if lost_scaling is None else f"{name}, so {lost_scaling} is not in force",
        f"It looks like '{miss.near}', which is not set to that.",
        miss.cure,
        evidence=evidence,
    )


def _layer_types(model: Model) -> Iterator[Finding]:
    """Rotary settings for a type of layer that the model does not have."""
    for place, values in _parts(model.config):
        types = values.get("layer_types")
        if not isinstance(types, list) or not types:
            continue
        for name in PLACES:
            entries = values.get(name)
            if not isinstance(entries, Mapping):
                continue
            known = printable(", ".join(sorted(set(map(str, types)))), 80)
            for key in (key for key, value in entries.items() if isinstance(value, Mapping)):
                if key not in types and key not in _LAYER_TYPES and key.endswith("_attention"):
                    yield _nowhere(
                        f"{place}{name}.{key}",
                        f"no layer is of that type: the model has {known}",
                    )


def _without_rotation(model: Model) -> Iterator[Finding]:
    """A scaling of RoPE in a model none of whose layers rotates."""
    own = [layer for layer in model.layers if layer.spec.kind == "self"]
    if not own or any(layer.encoding.rotary is not None or not layer.encoding.exact_tables for layer in own):
        return
    for place, values in _parts(model.config):
        for name in PLACES:
            if _stretches(values.get(name)):
                yield _nowhere(f"{place}{name}", "no layer of this model rotates its queries and keys")


def _aside(model: Model, told: Collection[str]) -> Iterator[Finding]:
    """Rotary settings in a part of the configuration whose removal changes no encoding, unless it was `told` of."""
    if not any(layer.encoding.rotary is not None for layer in model.layers):
        return
    for key, inner in model.config.items():
        if not isinstance(inner, Mapping) or key in PLACES or key in _NO_SETTINGS or key in told:
            continue
        if any(word in key for word in _OTHER_SENSES) or not _says_something(inner, model.config):
            continue
        left = {name: value for name, value in model.config.items() if name != key}
        if _describes_the_same(model, left):
            yield _nowhere(key, "without it the model is read just as it is now")


def _says_something(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> bool:
    """Whether a part sets a scaling, or a base, that the configuration around it does not."""
    if any(_stretches(inner.get(place)) and inner[place] != outer.get(place) for place in PLACES):
        return True
    bases = [values.get("rope_theta") for values in (inner, inner.get(PLACES[1])) if isinstance(values, Mapping)]
    known = [values.get("rope_theta") for values in (outer, outer.get(PLACES[1])) if isinstance(values, Mapping)]
    return any(base is not None and base not in known for base in bases)


def _describes_the_same(model: Model, config: Mapping[str, Any]) -> bool:
    try:
        values = Config(config, str(model.path))
        spec = choose_family(values, model.source, model.family).describe(values, model.source)
    except ToposcopeError:
        return False
    return [_told(layer.encoding) for layer in spec.layers] == [_told(layer.encoding) for layer in model.spec.layers]


def _told(encoding: Any) -> tuple[str, str]:
    return encoding.title, repr(sorted(encoding.parameters.items(), key=lambda item: item[0]))


def _stretches(values: Any) -> bool:
    if not isinstance(values, Mapping):
        return False
    kind = values.get("rope_type") or values.get("type")
    known = isinstance(kind, str) and LEGACY_KINDS.get(kind, kind) != "default"
    return known or any(_stretches(inner) for inner in values.values())


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The configuration, and that of its text model; each with what stands before a key's name."""
    yield "", config
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        yield "text_config.", inner


def _nowhere(path: str, why: str) -> Finding:
    return Finding(
        "unread-settings",
        "warning",
        f"'{printable(path, 80)}' has no effect",
        f"It holds rotary settings, but {why}.",
        "Move the settings to where they are read, or remove them.",
        evidence={"key": path},
    )
