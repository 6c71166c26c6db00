"""What a user expects of a model's encoding ("rope:scaling=yarn,factor=4"), against what it has.

An expectation is an encoding as `--encoding` takes it, for all layers of self-attention, or for those that `sliding=`
or `full=` before it names. Only what is stated is compared: "rope:base=500000" says nothing of a scaling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding, say_layers
from toposcope.core.errors import BadValue, did_you_mean
from toposcope.core.printable import printable
from toposcope.encodings import Encoding, EncodingSpec, parse

ID = "expected-encoding"
GROUPS = {"sliding": "sliding layers", "full": "layers that see the whole text"}
_UNSCALED = re.compile(r"([:,]\s*scaling\s*=\s*)none\s*(?=,|$)", re.IGNORECASE)
_ALIKE = {"rope": ("rope", "rope-partial", "mla")}  # names of encodings that an expected one covers


@dataclass(frozen=True)
class Expectation:
    """An encoding that layers should have; `group` is a key of GROUPS, or None for all."""

    written: str
    spec: EncodingSpec
    group: str | None = None


def expectations(written: str | Iterable[str] | None) -> tuple[Expectation, ...]:
    """What was written, understood."""
    several = () if written is None else (written,) if isinstance(written, str) else tuple(written)
    return tuple(_understood(each) for each in several)


def _understood(written: str) -> Expectation:
    before, equals, after = written.partition("=")
    if not equals or ":" in before:
        return Expectation(written, _parsed(written))
    group = before.strip().lower()
    if group not in GROUPS:
        raise BadValue(
            f"'{printable(before, 40)}' is no group of layers; expected an encoding such as rope:base=500000, or "
            f"sliding=... and full=... before one. {did_you_mean(group, GROUPS)}"
        )
    return Expectation(written, _parsed(after), group)


def _parsed(written: str) -> EncodingSpec:
    """An encoding as `--encoding` takes it; that it is not scaled may also be said as `scaling=none`."""
    return parse(_UNSCALED.sub(r"\1default", written))


def expected(model: Model, wanted: Sequence[Expectation]) -> Iterator[Finding]:
    """A finding for each expectation: a fault that names both sides, or that it holds."""
    for each in wanted:
        layers = [layer for layer in model.layers if layer.spec.kind == "self" and _in(layer, each.group)]
        if not layers:
            yield Finding(
                ID, "fault", "no layer is there to have the expected encoding",
                f"Expected {printable(each.written)}; there are no {GROUPS.get(each.group or '', 'such layers')}.",
                "Correct the expectation, or the configuration.", evidence={"expected": each.written},
            )  # fmt: skip
            continue
        yield from _compared(model, each, layers)


def _in(layer: Layer, group: str | None) -> bool:
    return group is None or (layer.spec.reach is not None) == (group == "sliding")


def _compared(model: Model, each: Expectation, layers: Sequence[Layer]) -> Iterator[Finding]:
    wrong: dict[str, tuple[list[int], dict[str, Any]]] = {}
    for layer in layers:
        apart = differences(each.spec, layer.encoding)
        if apart:
            wrong.setdefault(layer.encoding.title, ([], apart))[0].append(layer.number)
    for title, (numbers, apart) in wrong.items():
        where = say_layers(numbers, len(model.layers))
        words = "; ".join(
            f"{name.replace('_', ' ')} is {_shown(found, name)}, expected {_shown(want, name)}"
            for name, (want, found) in apart.items()
        )
        yield Finding(
            ID,
            "fault",
            "the encoding is not the expected one",
            f"Expected {printable(each.written)} in {where}; it is {title}: {words}.",
            "Correct the configuration (or the expectation).",
            layers=tuple(numbers),
            evidence={
                "expected": each.written,
                "found": title,
                "differs": {name: {"expected": want, "found": found} for name, (want, found) in apart.items()},
            },
        )
    if not wrong:
        yield Finding(
            ID,
            "ok",
            "the encoding is the expected one",
            f"{printable(each.written)} in {say_layers([layer.number for layer in layers], len(model.layers))}.",
            layers=tuple(layer.number for layer in layers),
            evidence={"expected": each.written},
        )


def differences(spec: EncodingSpec, own: Encoding) -> dict[str, tuple[Any, Any]]:
    """Each stated thing that is otherwise: what was expected, and what there is (None: nothing)."""
    if own.name not in _ALIKE.get(spec.name, (spec.name,)):
        return {"encoding": (spec.name, own.name)}
    found: dict[str, tuple[Any, Any]] = {}
    for name, want in spec.parameters.items():
        has = _value(name, own)
        if not _equal(want, has):
            found[name] = (want, has)
    return found


def _value(name: str, own: Encoding) -> Any:
    """A parameter of an encoding, worked out where it is not stated."""
    said: Mapping[str, Any] = own.parameters
    if own.rotary is not None and name == "rotary_dim":
        return own.rotary.channels
    if own.rotary is not None and name == "partial":
        return own.rotary.channels / own.rotary.head_dim
    if name == "scaling":
        return said.get(name, "default")
    if name == "factor" and said.get(name) is None and said.get("original_context") and said.get("context"):
        return said["context"] / said["original_context"]
    return said.get(name)


def _equal(want: Any, has: Any) -> bool:
    if isinstance(want, tuple | list) and isinstance(has, tuple | list):
        return len(want) == len(has) and all(_equal(x, y) for x, y in zip(want, has, strict=True))
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (want, has))
    return math.isclose(want, has, rel_tol=1e-6) if numbers else bool(want == has)


def _shown(value: Any, name: str) -> str:
    if name == "scaling" and value == "default":
        return "none"
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else printable(value, 60)
