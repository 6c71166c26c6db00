"""Typed reading of a configuration: a value of the wrong type is an error that names its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.core.errors import BadConfig
from toposcope.core.printable import printable
from toposcope.core.ranges import computable


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under `key`, empty where there is none."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadConfig(f"{key} must be a mapping, got {_said(value)}.")
    return value


def number(values: Mapping[str, Any], key: str, place: str = "") -> float | None:
    """The number under `key`, or None."""
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadConfig(f"{_at(place, key)} must be a number, got {_said(value)}.")
    if not computable(value):
        raise BadConfig(f"{_at(place, key)} is {_said(value)}, too large or too small a number to compute with.")
    return float(value)


def whole(values: Mapping[str, Any], key: str, place: str = "") -> int | None:
    """The positive whole number under `key`, or None."""
    value = number(values, key, place)
    if value is None:
        return None
    if not value.is_integer() or value < 1:
        raise BadConfig(f"{_at(place, key)} must be a whole number above 0, got {_said(values[key])}.")
    return int(value)


def flag(values: Mapping[str, Any], key: str, place: str) -> bool | None:
    """True or false under `key`, or None."""
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadConfig(f"{_at(place, key)} must be true or false, got {_said(value)}.")
    return value


def numbers(values: Mapping[str, Any], key: str, place: str) -> tuple[float, ...] | None:
    """The list of numbers under `key`, or None."""
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or any(
        isinstance(x, bool) or not isinstance(x, int | float) or not computable(x) for x in value
    ):
        raise BadConfig(f"{_at(place, key)} must be a list of numbers, got {_said(value)}.")
    return tuple(float(x) for x in value)


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _said(value: Any) -> str:
    return printable(repr(value), 60)
