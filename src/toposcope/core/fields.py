"""Dataclasses as data: fields to plain values for JSON, back again, and the JSON Schema of both.

A result is described once, by the annotations of its fields. `plain` writes them, `rebuilt` reads them, `schema`
describes them (draft 2020-12). Objects are closed: a key that is not a field is an error. A field without a default
must be there; one with a default may be missing, as in files written before the field existed, and then has it.

    float                   a number, or null where it is not finite
    NDArray                 lists of numbers; complex entries are pairs [real, imaginary]
    Mapping[K, V]           an object; keys become strings
    tuple[X, ...], list     a list
    Enum, Literal           one of their values
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.core.errors import BadFile
from toposcope.core.printable import printable

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_JSON: dict[Any, Any] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: ["number", "null"],
    str: "string",
    Path: "string",
}
_AS_IT_IS = frozenset({type(None), bool, int, str})  # values of just these types are written and read unchanged


@cache
def fields_of(kind: type) -> Mapping[str, Any]:
    """The fields of a dataclass and their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def required(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that have no default."""
    missing = dataclasses.MISSING
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is missing and field.default_factory is missing
    )


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def plain(value: Any) -> Any:
    """What JSON can hold: a dataclass becomes its fields, an array lists, a path a string, NaN and infinity null."""
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return plain((np.stack([value.real, value.imag], axis=-1) if np.iscomplexobj(value) else value).tolist())
    if isinstance(value, Sequence | AbstractSet):
        if all(type(entry) is float for entry in value):
            return [entry if math.isfinite(entry) else None for entry in value]
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return str(value)


def rebuilt(kind: Any, value: Any, at: str = "the result") -> Any:
    """The value of this type that `plain` wrote; a `BadFile` names the first place that is not one."""
    if kind is Any or (type(value) is kind and (kind is float or kind in _AS_IT_IS)):
        return value
    if dataclasses.is_dataclass(kind):
        return _object(typing.cast(type, kind), value, at)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_one_of(value, [member.value for member in kind], at))
    if kind in _JSON:
        return _scalar(kind, value, at)
    origin, parts = _parts(kind)
    if origin is typing.Literal:
        return _one_of(value, list(parts), at)
    if origin in (types.UnionType, typing.Union):
        return _first_that_fits(parts, value, at)
    if origin is np.ndarray:
        return _array(parts, value, at)
    if parts and all(part in (float, Ellipsis) for part in parts) and _floats(origin, parts, value):
        return tuple(value)
    if origin is tuple and parts[-1] is not Ellipsis:
        entries = _list(value, at)
        if len(entries) != len(parts):
            raise _wrong(at, f"a list of {len(parts)}", value)
        return tuple(rebuilt(part, each, f"{at}[{n}]") for n, (part, each) in enumerate(zip(parts, entries)))  # noqa: B905
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(at, "an object", value)
        return {_key(parts[0], key, at): rebuilt(parts[1], each, f"{at}.{key}") for key, each in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        entries = [rebuilt(parts[0], each, f"{at}[{n}]") for n, each in enumerate(_list(value, at))]
        return tuple(entries) if origin is not list else entries
    raise TypeError(f"{kind} cannot be read")


@cache
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a type is made of: tuple and (int, ...) of tuple[int, ...]."""
    return typing.get_origin(kind), typing.get_args(kind)


def schema(kind: type, *, name: str, title: str) -> dict[str, Any]:
    """The JSON Schema of a file that holds one such dataclass; `name` is its $id and what its key 'schema' says."""
    defs: dict[str, Any] = {}
    body = _described_object(kind, defs)
    body["properties"] = {"schema": {"const": name}, **body["properties"]}
    body["required"] = ["schema", *body["required"]]
    return {
        "$schema": DIALECT,
        "$id": name,
        "title": title,
        **body,
        "$defs": {key: defs[key] for key in sorted(defs)},
    }


# ------------------------------------------------------------------ reading
def _floats(origin: Any, parts: tuple[Any, ...], value: Any) -> bool:
    """Whether a tuple of numbers holds nothing else: it is then read at once, not one by one."""
    fits = origin is tuple and isinstance(value, list) and (parts[-1] is Ellipsis or len(value) == len(parts))
    return fits and all(type(each) is float for each in value)


def _object(kind: type, value: Any, at: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(at, "an object", value)
    known = fields_of(kind)
    for name in value:
        if name not in known:
            raise BadFile(f"{at} holds '{printable(name)}', which a {kind.__name__} does not have.")
    for name in required(kind):
        if name not in value:
            raise BadFile(f"{at} lacks '{name}', which a {kind.__name__} has.")
    return kind(**{name: rebuilt(hint, value[name], f"{at}.{name}") for name, hint in known.items() if name in value})


def _scalar(kind: Any, value: Any, at: str) -> Any:
    if kind is float:
        if value is None:
            return math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise _wrong(at, "a number", value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(at, "null" if kind is type(None) else kind.__name__, value)
    return value


def _one_of(value: Any, options: Sequence[Any], at: str) -> Any:
    for option in options:
        if value == option and type(value) is type(option):
            return option
    raise _wrong(at, f"one of {', '.join(map(str, options))}", value)


def _first_that_fits(parts: Sequence[Any], value: Any, at: str) -> Any:
    if type(value) in parts and type(value) in _AS_IT_IS:
        return value
    fault: BadFile | None = None
    for part in (each for each in parts if each is not type(None)):
        if part is float and isinstance(value, int) and int in parts:
            continue
        try:
            return rebuilt(part, value, at)
        except BadFile as error:
            fault = fault or error
    raise fault or _wrong(at, "null", value)


def _array(parts: Sequence[Any], value: Any, at: str) -> Any:
    given = typing.get_args(parts[1]) if len(parts) > 1 else ()
    dtype = np.dtype(given[0] if given else float)
    try:
        if dtype.kind != "c":
            return np.array(_list(value, at), dtype=dtype)
        pairs = np.array(_list(value, at), dtype=float).reshape(*np.shape(value)[:-1], 2)
        return (pairs[..., 0] + 1j * pairs[..., 1]).astype(dtype)
    except (ValueError, TypeError, OverflowError):
        raise _wrong(at, "lists of numbers", value) from None


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(at, "a list", value)
    return list(value)


def _key(kind: Any, key: str, at: str) -> Any:
    if kind is int:
        try:
            return int(key)
        except ValueError:
            raise _wrong(f"a key of {at}", "a whole number", key) from None
    return rebuilt(kind, key, f"a key of {at}")


def _wrong(at: str, expected: str, value: Any) -> BadFile:
    return BadFile(f"{at} is {printable(repr(value), 60)}, expected {expected}.")


# ------------------------------------------------------------------ schema
def _described(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if kind is Any:
        return {}
    if dataclasses.is_dataclass(kind):
        return _referred(typing.cast(type, kind), defs)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if kind in _JSON:
        return {"type": _JSON[kind]}
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if origin in (types.UnionType, typing.Union):
        return _either([_described(part, defs) for part in parts])
    if origin is np.ndarray:
        return {"type": "array", "items": {"type": ["number", "null", "array"]}}
    if origin is tuple and parts[-1] is not Ellipsis:
        entries = [_described(part, defs) for part in parts]
        return {"type": "array", "prefixItems": entries, "minItems": len(parts), "maxItems": len(parts)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _described(parts[1], defs)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": _described(parts[0], defs)}
    raise TypeError(f"{kind} has no schema")


def _described_object(kind: type, defs: dict[str, Any]) -> dict[str, Any]:
    known = fields_of(kind)
    return {
        "description": " ".join((kind.__doc__ or "").split("\n\n")[0].split()),
        "type": "object",
        "properties": {name: _described(each, defs) for name, each in known.items()},
        "required": list(required(kind)),
        "additionalProperties": False,
    }


def _either(options: list[dict[str, Any]]) -> dict[str, Any]:
    """One of several: types are joined into a list, anything else stands under anyOf."""
    if all(set(option) == {"type"} for option in options):
        listed = ([option["type"]] if isinstance(option["type"], str) else option["type"] for option in options)
        return {"type": list(dict.fromkeys(name for names in listed for name in names))}
    return {"anyOf": options}


def _referred(kind: type, defs: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in defs:
        defs[kind.__name__] = {}  # holds the place while it is being described
        defs[kind.__name__] = _described_object(kind, defs)
    return {"$ref": f"#/$defs/{kind.__name__}"}
