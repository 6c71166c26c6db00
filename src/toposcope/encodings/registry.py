"""From what a user writes to an encoding: `rope:base=500000,scaling=yarn,factor=8`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from toposcope.core.errors import BadEncoding, did_you_mean
from toposcope.encodings.kinds import Kind, Sizes, built_in, kinds
from toposcope.encodings.parameter import Value
from toposcope.encodings.record import Encoding


@dataclass(frozen=True)
class EncodingSpec:
    """An encoding by name and parameters, before it has sizes. Its `str` is read back by `parse` as the same spec."""

    name: str
    given: tuple[tuple[str, Value], ...] = ()

    @property
    def kind(self) -> Kind:
        """The entry of the table this spec belongs to."""
        return built_in()[self.name] if self.name in built_in() else kinds()[self.name]

    @property
    def parameters(self) -> Mapping[str, Value]:
        """The parameters that were given; all others have their defaults."""
        return MappingProxyType(dict(self.given))

    def build(self, sizes: Sizes) -> Encoding:
        """The encoding for a model of these sizes."""
        try:
            made = self.kind.build(sizes, self.parameters)
        except BadEncoding as error:
            raise BadEncoding(f"cannot build '{self}': {error}") from error
        if not isinstance(made, Encoding):  # a plug-in may give anything
            raise BadEncoding(f"'{self.name}' is built as {type(made).__name__}; expected an Encoding.")
        return made

    def __str__(self) -> str:
        if not self.given:
            return self.name
        texts = [f"{name}={self.kind.parameter(name).write(value)}" for name, value in self.given]  # type: ignore[union-attr]
        return f"{self.name}:{','.join(texts)}"


def parse(text: str) -> EncodingSpec:
    """Read `name` or `name:parameter=value,...`; lists are written with slashes (short_factor=1/1/2)."""
    name, colon, rest = text.strip().partition(":")
    kind, preset = _named(name, text)
    if colon and not rest.strip():
        raise BadEncoding(
            f"'{text}' ends with a colon but gives no parameters. Write {kind.name} alone, or name=value."
        )
    values: dict[str, Value] = {}
    for part in rest.split(",") if colon else []:
        key, equals, written = part.partition("=")
        key = key.strip().lower()
        if not equals or not key:
            raise BadEncoding(f"'{part.strip()}' in '{text}' is not of the form parameter=value.")
        if key in values:
            raise BadEncoding(f"'{key}' is given twice in '{text}'. Keep one of them.")
        parameter = kind.parameter(key)
        if parameter is None:
            raise _unknown(kind, key)
        values[key] = parameter.read(written)
    return _spec(kind, preset, values, name)


def spec(name: str, **parameters: Any) -> EncodingSpec:
    """An `EncodingSpec` from Python values; a parameter of None counts as not given."""
    kind, preset = _named(name, name)
    values: dict[str, Value] = {}
    for key, value in parameters.items():
        parameter = kind.parameter(key)
        if parameter is None:
            raise _unknown(kind, key)
        if value is not None:
            values[key] = parameter.check(value)
    return _spec(kind, preset, values, name)


def make(name: str, sizes: Sizes, **parameters: Any) -> Encoding:
    """Build an encoding by name: make("rope", sizes, base=500000.0)."""
    return spec(name, **parameters).build(sizes)


def _named(name: str, text: str) -> tuple[Kind, Mapping[str, Value]]:
    wanted = name.strip().lower()
    if not wanted:
        raise BadEncoding(f"'{text}' names no encoding. Known: {', '.join(kinds())}.")
    found = _among(built_in(), wanted) or _among(kinds(), wanted)  # other packages only where the name is not ours
    if found is not None:
        return found
    known = [*kinds(), *(alias for kind in kinds().values() for alias in kind.aliases)]
    hint = did_you_mean(wanted, known)
    if hint.startswith("Known"):
        hint = f"Known: {', '.join(kinds())}."  # without the aliases the list stays short
    raise BadEncoding(f"unknown encoding '{name.strip()}'. {hint}")


def _among(table: Mapping[str, Kind], wanted: str) -> tuple[Kind, Mapping[str, Value]] | None:
    if wanted in table:
        return table[wanted], {}
    return next(((kind, kind.aliases[wanted]) for kind in table.values() if wanted in kind.aliases), None)


def _spec(kind: Kind, preset: Mapping[str, Value], values: Mapping[str, Value], name: str) -> EncodingSpec:
    for key, value in preset.items():
        if values.get(key, value) != value:
            raise BadEncoding(f"'{name}' already means {key}={value}; it cannot have {key}={values[key]} as well.")
    merged = {**preset, **values}
    return EncodingSpec(
        kind.name, tuple((each.name, merged[each.name]) for each in kind.parameters if each.name in merged)
    )


def _unknown(kind: Kind, key: str) -> BadEncoding:
    names = [each.name for each in kind.parameters]
    hint = did_you_mean(key, names) if names else "It has no parameters."
    return BadEncoding(f"'{kind.name}' has no parameter '{key}'. {hint}")
