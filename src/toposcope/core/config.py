"""Typed reading of a configuration: a wrong or missing value is an error that names its key.

`Config` is a whole file, for values that are needed; the functions take any mapping, for values that may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toposcope.core.errors import BadConfig
from toposcope.core.printable import printable
from toposcope.core.ranges import computable

LARGEST = 2**24  # no width, head count or context of a real model is larger; a damaged configuration's may be


class Config(Mapping[str, Any]):
    """A configuration with checked access: a wrong or missing value is an error that names the file and key."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def part(self, key: str) -> Config:
        """A nested configuration ('text_config', 'attn_config'); empty where absent."""
        inner = self._values.get(key) or {}
        if not isinstance(inner, Mapping):
            raise BadConfig(f"'{printable(key)}' in {self.where} is {inner!r}; expected an object with settings.")
        return Config(inner, f"{self.where} ({key})")

    def updated(self, **values: Any) -> Config:
        """The same configuration with some values replaced."""
        return Config({**self._values, **values}, self.where)

    def with_defaults(self, **values: Any) -> Config:
        """The same with the architecture's defaults for absent keys, which old files omit; null stays null."""
        return Config({**values, **self._values}, self.where)

    def integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The first of `keys` that is set, a whole number from `least` to `most`; `default` where none is."""
        value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadConfig(
                f"'{printable(keys[0])}' in {self.where} is {printable(repr(value), 60)}; "
                f"expected a whole number from {least} to {most:,}."
            )
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        """The first of `keys` that is set, a finite number."""
        value = self._first(keys, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise BadConfig(f"'{printable(keys[0])}' in {self.where} is {value!r}; expected a number.")
        return float(value)

    def flag(self, *keys: str, default: bool) -> bool:
        """The first of `keys` that is set, true or false."""
        value = self._first(keys, default)
        if not isinstance(value, bool):
            raise BadConfig(f"'{printable(keys[0])}' in {self.where} is {value!r}; expected true or false.")
        return value

    def text(self, *keys: str, default: str) -> str:
        """The first of `keys` that is set, a string."""
        value = self._first(keys, default)
        if not isinstance(value, str):
            raise BadConfig(f"'{printable(keys[0])}' in {self.where} is {value!r}; expected a name.")
        return value

    def listed(self, key: str, length: int) -> list[Any] | None:
        """A list with one entry per layer, or None where absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise BadConfig(
                f"'{printable(key)}' in {self.where} is not a list with an entry for each of the {length} layers."
            )
        return value

    def _first(self, keys: tuple[str, ...], default: Any) -> Any:
        for key in keys:
            if self._values.get(key) is not None:
                return self._values[key]
        if default is None:
            raise BadConfig(
                f"{self.where} lacks '{printable(keys[0])}', without which the weights cannot be sorted into heads."
            )
        return default


def optional_part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under `key`, empty where there is none."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadConfig(f"{key} must be a mapping, got {_said(value)}.")
    return value


def optional_number(values: Mapping[str, Any], key: str, place: str = "") -> float | None:
    """The number under `key`, or None."""
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadConfig(f"{_at(place, key)} must be a number, got {_said(value)}.")
    if not computable(value):
        raise BadConfig(f"{_at(place, key)} is {_said(value)}, too large or too small a number to compute with.")
    return float(value)


def optional_integer(values: Mapping[str, Any], key: str, place: str = "") -> int | None:
    """The positive whole number under `key`, or None."""
    value = optional_number(values, key, place)
    if value is None:
        return None
    if not value.is_integer() or value < 1:
        raise BadConfig(f"{_at(place, key)} must be a whole number above 0, got {_said(values[key])}.")
    return int(value)


def optional_flag(values: Mapping[str, Any], key: str, place: str) -> bool | None:
    """True or false under `key`, or None."""
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadConfig(f"{_at(place, key)} must be true or false, got {_said(value)}.")
    return value


def optional_numbers(values: Mapping[str, Any], key: str, place: str) -> tuple[float, ...] | None:
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
