"""An encoding with some of its settings changed, and the rest of a model's own kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from toposcope.core.errors import BadEncoding
from toposcope.encodings.record import Encoding, Rotary
from toposcope.encodings.registry import EncodingSpec
from toposcope.encodings.rotary import rope

REBUILT = ("rope", "rope-partial", "mla")  # encodings whose parameters `rope` takes


def rebuilt(own: Encoding, **changes: Any) -> Rotary | None:
    """The rotation of the same settings with some changed, on the same pairs; None where it cannot be built."""
    rotary = own.rotary
    if rotary is None or own.name not in REBUILT:
        return None
    stated = {name: value for name, value in own.parameters.items() if name not in ("nope_dim", "rope_dim")}
    usual = _attention_factor({**stated, "attention_factor": None})
    if usual is not None and np.isclose(usual, rotary.attention_factor):
        stated.pop("attention_factor", None)  # it follows from the rest, and so it does after a change
    try:
        made = rope(**{**stated, **changes}).rotary
    except BadEncoding:
        return None
    if made is None or len(made.pairs_F2) != len(rotary.pairs_F2):
        return None
    return replace(rotary, frequencies_at=made.frequencies_at, attention_factor=made.attention_factor)


def _attention_factor(stated: Mapping[str, Any]) -> float | None:
    try:
        made = rope(**stated).rotary
    except BadEncoding:
        return None
    return None if made is None else made.attention_factor


def like_own(spec: EncodingSpec, own: Encoding) -> EncodingSpec:
    """RoPE without a base means the model's own base: a scaling alone changes the scaling alone."""
    base = own.parameters.get("base")
    if spec.kind.parameter("base") is None or base is None or own.rotary is None or "base" in spec.parameters:
        return spec
    if spec.kind.mechanism != "rotary":
        return spec
    given = {**spec.parameters, "base": float(base)}
    return EncodingSpec(spec.name, tuple((p.name, given[p.name]) for p in spec.kind.parameters if p.name in given))
