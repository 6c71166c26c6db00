"""Rotary settings: what the configuration says against what is in force.

A configuration may set the base in one place and lose it in another, declare a scaling that changes nothing, or hold
two generations of settings that disagree. Old checkpoints also store the frequencies themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from toposcope.checkpoints.config_only import without_weights
from toposcope.checkpoints.view import Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.checks.keys import ORIGINAL, PLACES, mentions, near_misses, unread
from toposcope.checks.rotary import groups
from toposcope.core.errors import ToposcopeError
from toposcope.encodings import rope_from_config
from toposcope.encodings.config_place import LEGACY_KINDS, NO_SCALING
from toposcope.encodings.record import Array, Encoding, Rotary, short
from toposcope.encodings.scalings import STRETCHED_FROM_ORIGINAL, plain_frequencies

# words of the remarks that name a mistake; other remarks only inform
_ODD = (
    "is in force",
    "no effect",
    "does not read",
    "changes nothing",
    "shortens",
    "is lost",
    "without a factor",
    "no rope_type",
    "times the original",
    "rotary_dim counts",
)
_KEY = re.compile(r"\S*\w[_.]\w")
_STORED = re.compile(r"(?:^|\.)rotary_(?:pos_)?emb(?:eddings?)?\.inv_freq$")


def settings(model: Model) -> Iterator[Finding]:
    """All findings about the rotary settings of a model."""
    config = _text_part(model.config)
    found = [*_contradiction(config, model), *_lost_base(config, model), *_kinds(config)]
    found += unread(model)
    told = {miss.place.removeprefix("text_config.") for miss in near_misses(model.config) if miss.for_kind}
    for encoding, rotary, layers in groups(model):
        found += _without_effect(model, encoding, layers, told)
        found += _effect(model, encoding, rotary, layers)
        found += _original(config, encoding, layers)
        found += _attention_factor(encoding, layers)
    found += _stored(model)
    yield from found
    troubled = any(finding.status != "ok" for finding in found)
    for encoding, rotary, layers in groups(model):
        yield from _in_force(model, encoding, rotary, layers, quiet=troubled)


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def _in_force(
    model: Model, encoding: Encoding, rotary: Rotary, layers: tuple[int, ...], *, quiet: bool
) -> Iterator[Finding]:
    """What is in force, and what is odd about how it was written (unless that is already a finding)."""
    remarks = [note for note in encoding.notes if any(word in note for word in _ODD)]
    notes = [note for note in encoding.notes if note not in remarks]
    said = f"In {say_layers(layers, len(model.layers))}: {encoding.title}."
    stand = "set in the configuration" if without_weights(model.source) else "in force"
    if remarks and not quiet:
        yield Finding(
            "rotary-settings",
            "warning",
            "the rotary settings are written in an odd way",
            f"{said} {_sentences(remarks)}",
            "Correct the configuration so that it says what is meant.",
            layers=layers,
        )
    yield Finding(
        "rotary-settings",
        "ok",
        f"rotary settings {stand}: {_briefly(encoding, rotary)}",
        f"{said} {_sentences([*notes, *remarks])}".strip(),
        layers=layers,
        evidence={
            **{key: encoding.parameters.get(key) for key in ("base", "scaling", "factor", "original_context")},
            "attention_factor": rotary.attention_factor,
        },
    )


def _briefly(encoding: Encoding, rotary: Rotary) -> str:
    """Base and scaling; that there is no scaling is said, for whoever asks whether theirs is in force."""
    p = encoding.parameters
    kind, factor, original = p.get("scaling", "default"), p.get("factor"), p.get("original_context")
    if kind == "default":
        stretched = "no scaling" if p.get("divisors") is None else "stored frequency divisors"
    else:
        stretched = f"{kind} scaling" + (f" x{float(factor):g}" if factor else "")
        stretched += f" from a trained context of {original:,}" if original else ""
    if rotary.attention_factor != 1:
        stretched += f", attention factor {rotary.attention_factor:.4g}"
    return stretched if p.get("base") is None else f"base {short(float(p['base']))}, {stretched}"


def _sentences(remarks: list[str]) -> str:
    """Each with a capital, unless it begins with a key of the configuration."""
    return " ".join(each if _KEY.match(each) else each[:1].upper() + each[1:] for each in remarks)


def _without_effect(
    model: Model, encoding: Encoding, layers: tuple[int, ...], told: Collection[str]
) -> Iterator[Finding]:
    """A factor in the settings in force whose rope_type does not scale, unless a misspelt key was `told` of there."""
    for remark in encoding.notes:
        if remark.startswith(NO_SCALING) and not any(f"though {place} sets" in remark for place in told):
            title, _, why = remark.partition(": ")
            yield Finding(
                "scaling-lost",
                "fault",
                title,
                f"In {say_layers(layers, len(model.layers))}: {encoding.title}, since {why}",
                "Set rope_type to what the model was trained with ('linear', 'yarn', ...), or remove factor.",
                layers=layers,
                evidence={"remark": remark},
            )


def _contradiction(config: Mapping[str, Any], model: Model) -> Iterator[Finding]:
    old, new = (config.get(place) for place in PLACES)
    if not (isinstance(old, Mapping) and isinstance(new, Mapping) and old and new):
        return
    rotary = next((r for _, r, _ in groups(model)), None)
    if rotary is None or any(isinstance(value, Mapping) for value in (*old.values(), *new.values())):
        return
    try:
        either = [
            rope_from_config({**config, place: None}, rotary.channels).rotary
            for place in ("rope_parameters", "rope_scaling")
        ]
    except ToposcopeError:
        return
    length = int(model.spec.context or 4096)
    first, second = ((r.frequencies(length), r.attention_factor) for r in either if r is not None)
    if np.allclose(first[0], second[0], rtol=1e-6) and math.isclose(first[1], second[1], rel_tol=1e-6):
        return
    apart = float(np.max(np.maximum(first[0] / second[0], second[0] / first[0])))
    yield Finding(
        "settings-contradict",
        "fault",
        "rope_scaling and rope_parameters contradict each other",
        f"Read by one or the other, frequencies differ by a factor of up to {apart:.3g}. rope_scaling is in force "
        "in transformers, and another program may decide otherwise.",
        "Keep one of the two: the one the model was trained with.",
        evidence={"rope_scaling": dict(old), "rope_parameters": dict(new), "apart": apart},
    )


def _lost_base(config: Mapping[str, Any], model: Model) -> Iterator[Finding]:
    """A base that stands in the configuration and is not the one in force."""
    bases = [e.parameters.get("base") for e, _, _ in groups(model)]
    written = {place: _flat(config, place).get("rope_theta") for place in PLACES}
    written["the top level"] = config.get("rope_theta")
    stated = {place: float(v) for place, v in written.items() if isinstance(v, int | float)}
    if len(set(bases)) != 1 or bases[0] is None or not stated:
        return
    lost = {place: value for place, value in stated.items() if not math.isclose(value, float(bases[0]))}
    for place, value in lost.items():
        yield Finding(
            "base-lost",
            "fault",
            f"the rotary base {short(value)} is lost",
            f"It stands in {place} of the configuration, but {short(float(bases[0]))} is in force.",
            "Write the base once, where it is read: inside rope_parameters, or at the top level without it.",
            evidence={"written": value, "place": place, "in_force": float(bases[0])},
        )


def _flat(config: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    values = config.get(place)
    if not isinstance(values, Mapping) or any(isinstance(v, Mapping) for v in values.values()):
        return {}
    return values


def _kinds(config: Mapping[str, Any]) -> Iterator[Finding]:
    for place in PLACES:
        values = _flat(config, place)
        new, old = values.get("rope_type"), values.get("type")
        if isinstance(new, str) and isinstance(old, str) and LEGACY_KINDS.get(new, new) != LEGACY_KINDS.get(old, old):
            yield Finding(
                "kinds-disagree",
                "warning",
                f"{place} names two scalings",
                f"rope_type is '{new}' and type is '{old}'; rope_type is in force.",
                "Keep rope_type only.",
            )


def _effect(model: Model, encoding: Encoding, rotary: Rotary, layers: tuple[int, ...]) -> Iterator[Finding]:
    """A scaling that is declared and leaves every frequency as it was."""
    p = encoding.parameters
    kind = p.get("scaling", "default")
    if kind in ("default", "proportional"):
        return
    lengths = {None, model.spec.context, p.get("original_context")}
    plain_F = _plain(encoding, rotary)
    changes = [float(np.max(np.abs(rotary.frequencies(n) / plain_F - 1))) for n in lengths]
    if max(changes) > 1e-6 or abs(rotary.attention_factor - 1) > 1e-6:
        return
    where = say_layers(layers, len(model.layers))
    if kind == "dynamic" and float(p.get("factor") or 1) > 1:
        yield Finding(
            "scaling-effect",
            "ok",
            "dynamic scaling acts beyond the claimed context only",
            f"In {where} frequencies are unscaled up to {model.spec.context} tokens, which is how dynamic scaling "
            "is meant.",
            layers=layers,
        )
        return
    factor = p.get("factor")
    why = (
        "its factor is 1"
        if factor is not None and float(factor) == 1
        else "no pair is slow enough, or all its factors are 1"
    )
    yield Finding(
        "scaling-effect",
        "warning",
        f"{kind} scaling is declared but changes nothing",
        f"In {where} every frequency is that of plain RoPE, at any length up to {model.spec.context} tokens: {why}.",
        "Remove the scaling, or correct its factor and original context.",
        layers=layers,
        evidence={"scaling": kind, "factor": factor},
    )


def _plain(encoding: Encoding, rotary: Rotary) -> Array:
    p = encoding.parameters
    width = int(p.get("frequency_dim") or p.get("rotary_dim") or rotary.channels)
    plain_F = plain_frequencies(width, float(p["base"]))[: len(rotary.pairs_F2)]
    return plain_F / np.asarray(p["divisors"]) if p.get("divisors") is not None else plain_F


def _original(config: Mapping[str, Any], encoding: Encoding, layers: tuple[int, ...]) -> Iterator[Finding]:
    p = encoding.parameters
    if p.get("scaling") not in STRETCHED_FROM_ORIGINAL or not config.get("model_type") or mentions(config, ORIGINAL):
        return
    claimed = p.get("original_context")
    yield Finding(
        "original-context",
        "warning",
        f"{p['scaling']} scaling without the original context",
        f"{ORIGINAL} is not set, so the claimed context ({claimed}) stands in for it. That is right if the model was "
        f"trained on {claimed} tokens; if {claimed} is already the stretched length, the wrong pairs are stretched.",
        f"Set {ORIGINAL} to the length the model was trained on before it was stretched, even if that is {claimed}.",
        layers=layers,
        evidence={"assumed": claimed, "factor": p.get("factor")},
    )


def _attention_factor(encoding: Encoding, layers: tuple[int, ...]) -> Iterator[Finding]:
    p = encoding.parameters
    factor, used = p.get("factor"), p.get("attention_factor")
    if p.get("scaling") != "yarn" or not factor or used is None or p.get("mscale") or p.get("mscale_all_dim"):
        return
    own = 1.0 if float(factor) <= 1 else 0.1 * math.log(float(factor)) + 1
    if abs(float(used) / own - 1) > 0.01:
        yield Finding(
            "attention-factor",
            "warning",
            "the attention factor does not belong to the scaling factor",
            f"yarn by {float(factor):g} multiplies rotated vectors by {own:.4f}; the configuration says "
            f"{float(used):.4f}.",
            "Leave attention_factor out unless the model was trained with this one.",
            layers=layers,
            evidence={"used": float(used), "expected": own},
        )


def _stored(model: Model) -> Iterator[Finding]:
    """Frequencies that old checkpoints store, against those of the configuration."""
    names = [name for name in sorted(model.source.names()) if _STORED.search(name)]
    wrong: list[tuple[str, int | None, float]] = []
    matched = 0
    for name in names:
        layer = _layer_of(name, model)
        rotary = layer and layer.encoding.rotary
        stored_F = model.source.read(name).astype(np.float64).reshape(-1)
        if not layer or rotary is None:
            continue
        coarse = model.source.info(name).dtype.upper() not in ("F32", "F64", "FLOAT32", "FLOAT64")
        allowed = (rotary.frequencies(None), rotary.frequencies(model.spec.context), _plain(layer.encoding, rotary))
        off = min(_apart(stored_F, each) for each in allowed)
        matched += 1
        if off > (0.02 if coarse else 1e-3):
            wrong.append((name, layer.number, off))
    if wrong:
        name, _, off = wrong[0]
        yield Finding(
            "stored-frequencies",
            "fault",
            "the frequencies stored in the file are not those of the configuration",
            f"'{name}' differs by {off:.1%} from what the configuration gives"
            + (f", and {len(wrong) - 1} more." if len(wrong) > 1 else "."),
            "The base or the scaling was lost from the configuration: the model was trained with the stored ones.",
            layers=tuple(n for _, n, _ in wrong if n is not None),
            evidence={"tensor": name, "difference": off},
        )
    elif matched:
        yield Finding(
            "stored-frequencies",
            "ok",
            "the frequencies stored in the file are those of the configuration",
            f"{matched} stored tables agree.",
        )


def _layer_of(name: str, model: Model) -> Any:
    numbers = re.findall(r"\d+", name)
    rotating = [layer for layer in model.layers if layer.encoding.rotary is not None]
    if not numbers:
        return rotating[0] if rotating else None
    return next((layer for layer in rotating if layer.spec.index == int(numbers[-1])), None)


def _apart(stored_F: Array, ours_F: Array) -> float:
    if stored_F.shape != ours_F.shape:
        return math.inf
    return float(np.max(np.abs(stored_F - ours_F) / np.maximum(ours_F, 1e-4)))
