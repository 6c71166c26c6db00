"""One parameter of an encoding, as a user writes it: its type, its range, and how it is read and written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from toposcope.core.errors import BadEncoding, nearest
from toposcope.core.printable import printable
from toposcope.core.ranges import computable
from toposcope.encodings.record import plain

Value = int | float | bool | str | tuple[float, ...]


@dataclass(frozen=True)
class Parameter:
    """Name, type, default and meaning. A default of None means: derived, as `doc` says.

    `above` is a bound that must be exceeded, `least` and `most` are bounds that may be met. `floats` is a list,
    written with slashes: 1/1/2.
    """

    name: str
    type: Literal["int", "float", "bool", "choice", "floats"]
    default: Value | None
    doc: str
    choices: tuple[str, ...] = ()
    above: float | None = None
    least: float | None = None
    most: float | None = None

    @classmethod
    def number(
        cls,
        name: str,
        default: float | None,
        doc: str,
        *,
        above: float | None = None,
        least: float | None = None,
        most: float | None = None,
    ) -> Parameter:
        """A number within bounds."""
        return cls(name, "float", default, doc, (), above, least, most)

    @classmethod
    def whole(cls, name: str, default: int | None, doc: str, least: float = 1) -> Parameter:
        """A whole number, from 1 on unless `least` differs."""
        return cls(name, "int", default, doc, least=least)

    @classmethod
    def choice(cls, name: str, default: str, doc: str, *choices: str) -> Parameter:
        """One of several words."""
        return cls(name, "choice", default, doc, choices)

    @property
    def expected(self) -> str:
        """What may be written, in words."""
        if self.type == "choice":
            return f"one of {', '.join(self.choices)}"
        if self.type == "bool":
            return "true or false"
        bounds = [
            f"{word} {plain(bound)}"
            for word, bound in (("above", self.above), ("at least", self.least), ("at most", self.most))
            if bound is not None
        ]
        kind = {"int": "a whole number", "float": "a number", "floats": "numbers separated by '/', each"}[self.type]
        if self.type == "floats" and not bounds:
            kind = "numbers separated by '/'"
        return " ".join([kind, " and ".join(bounds)]).strip()

    def read(self, text: str) -> Value:
        """The value a user wrote."""
        text = text.strip()
        if not text:
            raise BadEncoding(f"'{self.name}' has no value. Expected {self.expected}.")
        if self.type == "choice":
            return self.check(text.lower())
        if self.type == "bool":
            flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
            if text.lower() not in flags:
                raise self._wrong(text)
            return flags[text.lower()]
        try:
            numbers = [float(part) for part in (text.split("/") if self.type == "floats" else [text])]
        except ValueError:
            raise self._wrong(text) from None
        return self.check(numbers if self.type == "floats" else numbers[0])

    def check(self, value: Any) -> Value:
        """The value in its own type, or an error that says what was given and what was expected."""
        if self.type == "choice":
            if value not in self.choices:
                hint = nearest(str(value), self.choices)  # what is expected names all of them already
                raise BadEncoding(f"'{self.name}' is '{value}'; expected {self.expected}. {hint}".rstrip())
            return str(value)
        if self.type == "bool":
            if not isinstance(value, bool | np.bool_):
                raise self._wrong(value)
            return bool(value)
        if self.type == "floats":
            many = [value] if isinstance(value, int | float) else value
            if isinstance(many, str) or not isinstance(many, Iterable):
                raise self._wrong(value)
            numbers = tuple(self._number(each, value) for each in many)
            if not numbers:
                raise self._wrong(value)
            return numbers
        number = self._number(value, value)
        if self.type == "float":
            return number
        if not number.is_integer() or abs(number) >= 2**53:
            raise self._wrong(value)
        return int(number)

    def write(self, value: Value) -> str:
        """The value as `read` would accept it, exactly."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return "/".join(plain(each) for each in value)
        return value if isinstance(value, str) else plain(value)

    def _number(self, value: Any, whole: Any) -> float:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
            raise self._wrong(whole)
        try:
            number = float(value)
        except OverflowError:
            raise self._wrong(whole) from None
        out_of_range = (
            not computable(number)
            or (self.above is not None and number <= self.above)
            or (self.least is not None and number < self.least)
            or (self.most is not None and number > self.most)
        )
        if out_of_range:
            raise self._wrong(whole)
        return number

    def _wrong(self, value: Any) -> BadEncoding:
        given = printable(value if isinstance(value, str) else repr(value), 80)
        return BadEncoding(f"'{self.name}' is {given}; expected {self.expected}.")


SEED = Parameter.whole("seed", 0, "seed of the draw", least=0)
