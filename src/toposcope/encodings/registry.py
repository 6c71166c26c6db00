"""Encodings that a user can name, and from what a user writes (`rope:base=500000,scaling=yarn`) to an encoding.

A module beside this one that lists `KINDS` (and the `PAPERS` behind them) brings encodings; there is no central list.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from toposcope.core.errors import BadEncoding, BadValue, did_you_mean, nearest
from toposcope.core.plugins import Plugin, origins, plugins
from toposcope.core.printable import printable
from toposcope.encodings.parameter import Parameter, Value
from toposcope.encodings.record import Encoding

Mechanism = Literal["none", "input", "bias", "rotary", "content"]
Given = Mapping[str, Any]
# No model is larger by far, and tables of these sizes would take hours or more than any memory.
LARGEST = MappingProxyType({"width": 2**24, "heads": 2**16, "head_dim": 2**14, "context": 2**40})


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model an encoding is built for. `head_dim` is the width of a query, whatever it is made of."""

    width: int
    heads: int
    head_dim: int
    context: int
    causal: bool = True

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadValue(f"{name} must be between 1 and {most:,}, got {printable(getattr(self, name), 40)}.")


@dataclass(frozen=True)
class Paper:
    """One source: who, what, where, when; `arxiv` is its number there, where it has one."""

    authors: str
    title: str
    where: str
    year: int
    arxiv: str | None = None
    url: str | None = None

    def __str__(self) -> str:
        link = f"arXiv:{self.arxiv}" if self.arxiv else self.url
        return f"{self.authors}. {self.title}. {self.where}, {self.year}." + (f" {link}" if link else "")


@dataclass(frozen=True)
class Kind:
    """One encoding a user can name. `aliases` maps other names to the parameters they stand for.

    `learns` names the tensors that training changes, and `trained` builds the encoding from them, given the sizes and
    the parameters of its initial form.
    """

    name: str
    summary: str
    mechanism: Mechanism
    build: Callable[[Sizes, Given], Encoding]
    parameters: tuple[Parameter, ...] = ()
    aliases: Mapping[str, Mapping[str, Value]] = field(default_factory=lambda: MappingProxyType({}))
    citations: tuple[str, ...] = ()
    learns: tuple[str, ...] = ()
    trained: Callable[[Sizes, Given, Mapping[str, NDArray[Any]]], Encoding] | None = None

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name, if there is one."""
        return next((each for each in self.parameters if each.name == name), None)


@cache
def built_in() -> Mapping[str, Kind]:
    """Toposcope's own encodings, in the order of the documentation: by where position enters, then by year."""
    found = [kind for module in _modules() for kind in getattr(module, "KINDS", ())]
    known, mechanisms = papers(), get_args(Mechanism)

    def order(kind: Kind) -> tuple[int, float]:
        year = known[kind.citations[0]].year if kind.citations else float("inf")
        return mechanisms.index(kind.mechanism), year

    return MappingProxyType({kind.name: kind for kind in sorted(found, key=order)})


@cache
def papers() -> Mapping[str, Paper]:
    """The papers behind the encodings, by the keys that `Encoding.citations` and `Kind.citations` use."""
    found = [paper for module in _modules() for paper in getattr(module, "PAPERS", {}).items()]
    return MappingProxyType(dict(sorted(found, key=lambda paper: paper[1].year)))


@cache
def kinds() -> Mapping[str, Kind]:
    """Every encoding that can be named, in the order of the documentation; then those of other packages."""
    return MappingProxyType({**built_in(), **{name: each.value for name, each in _brought().items()}})


def kind_origins() -> Mapping[str, str]:
    """The package behind each encoding."""
    return origins(built_in(), _brought())


def _modules() -> list[ModuleType]:
    package = importlib.import_module("toposcope.encodings")
    names = [each.name for each in pkgutil.iter_modules(package.__path__)]
    return [importlib.import_module(f"toposcope.encodings.{name}") for name in names]


@cache
def _brought() -> Mapping[str, Plugin]:
    return plugins("encodings", _wrong)


def _wrong(value: Any) -> str | None:
    if not isinstance(value, Kind):
        return f"it is a {type(value).__name__}; expected a toposcope.encodings.Kind"
    taken = {name for kind in built_in().values() for name in (kind.name, *kind.aliases)}
    clash = next((name for name in (value.name, *value.aliases) if name in taken), None)
    return None if clash is None else f"'{clash}' is an encoding of Toposcope already"


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
    name, colon, rest = _text(text).strip().partition(":")
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


def listed(encodings: str | EncodingSpec | Iterable[str | EncodingSpec]) -> tuple[str, ...]:
    """One encoding or several, as they are written."""
    if isinstance(encodings, str | EncodingSpec) or not isinstance(encodings, Iterable):
        encodings = (encodings,)
    return tuple(str(each) if isinstance(each, EncodingSpec) else _text(each) for each in encodings)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise BadEncoding(f"an encoding is named by a text, such as 'rope:base=500000'; got {given!r:.80}.")
    return given


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
    hint = nearest(wanted, known) or f"Known: {', '.join(kinds())}."  # without the aliases the list stays short
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
