"""From the types of a result to JSON Schema (draft 2020-12).

A result is described by Python's own types: the fields of a frozen dataclass, or a `Shape` where the JSON differs
from the dataclass. Both are closed: a key that is not described is an error, and so is one that is missing. Numbers
that are not finite are written as null (`results.plain`), so a float may be null.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE: dict[Any, Any] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: ["number", "null"],
    str: "string",
    Path: "string",
}


@dataclass(frozen=True, eq=False)
class Shape:
    """A JSON object with these keys and no others; those in `may_lack` may be missing.

    `without` is a key and the types that others have where that key is missing.
    """

    name: str
    about: str
    fields: Mapping[str, Any]
    may_lack: frozenset[str] = frozenset()
    without: tuple[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Maybe:
    """Such a value, or null."""

    kind: Any


def many(kind: Any) -> Any:
    """A list of such values."""
    return types.GenericAlias(list, (kind,))


def fields(result: type, *names: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass and their types: all, all but some, or those named."""
    hints = typing.get_type_hints(result)
    return {name: hints[name] for name in (names or hints) if name not in without}


def document(schema: str, title: str, shape: Shape) -> dict[str, Any]:
    """The whole schema of a file: `shape` is its outermost object, the others stand in $defs under their names."""
    defs: dict[str, Any] = {}
    body = _object(shape, defs)
    body["properties"]["schema"] = {"const": schema}
    return {
        "$schema": DIALECT,
        "$id": schema,
        "title": title,
        **body,
        "$defs": {name: defs[name] for name in sorted(defs)},
    }


def _object(shape: Shape, defs: dict[str, Any]) -> dict[str, Any]:
    narrower = {}
    if shape.without is not None:
        key, kinds = shape.without
        narrowed = {name: described(kind, defs) for name, kind in kinds.items()}
        narrower = {"if": {"not": {"required": [key]}}, "then": {"properties": narrowed}}
    return {
        "description": shape.about,
        "type": "object",
        "properties": {name: described(kind, defs) for name, kind in shape.fields.items()},
        "required": [name for name in shape.fields if name not in shape.may_lack],
        "additionalProperties": False,
        **narrower,
    }


def described(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """The schema of one type; objects are put into `defs` and referred to."""
    if kind is Any:
        return {}
    if isinstance(kind, Shape):
        return _referred(kind, defs)
    if isinstance(kind, Maybe):
        return _either([described(kind.kind, defs), {"type": "null"}])
    if isinstance(kind, type) and is_dataclass(kind):
        return _referred(Shape(kind.__name__, _first_words(kind), fields(kind)), defs)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if origin in (types.UnionType, typing.Union):
        return _either([described(part, defs) for part in parts])
    if origin is tuple and parts[-1] is not Ellipsis:
        return {
            "type": "array",
            "prefixItems": [described(part, defs) for part in parts],
            "minItems": len(parts),
            "maxItems": len(parts),
        }
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": described(parts[1], defs)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": described(parts[0], defs)}
    raise TypeError(f"{kind} has no schema")


def _either(options: list[dict[str, Any]]) -> dict[str, Any]:
    """One of several: types are joined into a list, anything else stands under anyOf."""
    if all(set(option) == {"type"} for option in options):
        names = dict.fromkeys(name for option in options for name in _names(option["type"]))
        return {"type": list(names)}
    return {"anyOf": options}


def _names(kind: str | list[str]) -> list[str]:
    return [kind] if isinstance(kind, str) else kind


def _referred(shape: Shape, defs: dict[str, Any]) -> dict[str, Any]:
    if shape.name not in defs:
        defs[shape.name] = {}  # holds the place while it is being described
        defs[shape.name] = _object(shape, defs)
    return {"$ref": f"#/$defs/{shape.name}"}


def _first_words(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())
