"""Small helpers for what is said to a reader: numbers without noise, and frozen parameter mappings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def plain(number: float) -> str:
    """A number as a person would write it, exact enough to be read back: 500000, 0.25, 1e-05."""
    if isinstance(number, int) or (abs(number) < 1e16 and float(number).is_integer()):
        return str(int(number))
    return repr(float(number))


def short(number: float) -> str:
    """A number for a title, where six figures are enough."""
    text = plain(number)
    return text if len(text) <= 8 else f"{number:.6g}"


def stated(**parameters: Any) -> Mapping[str, Any]:
    """The parameters that have a value, read-only and ready for JSON."""
    return MappingProxyType({name: value for name, value in parameters.items() if value is not None})
