"""What a request asks for, read as strictly as the command line reads its options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from toposcope.core.errors import BadValue, did_you_mean

T = TypeVar("T")
LONGEST_TEXT = 400


class Query:
    """The parameters of one request. Each is read once, by type and range; `close` refuses what nobody read."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._given: dict[str, str] = {}
        self._known: set[str] = set()
        for name, value in pairs:
            if name in self._given:
                raise BadValue(f"'{_short(name)}' is given twice. Keep one of them.")
            self._given[name] = value

    def has(self, name: str) -> bool:
        """Whether the parameter is given and not empty."""
        return self._raw(name) is not None

    def text(
        self, name: str, default: str | None = None, choices: Sequence[str] = (), most: int = LONGEST_TEXT
    ) -> str:
        """A text of ordinary length, one of `choices` where there are some."""
        value = self._raw(name)
        if value is None:
            if default is None:
                raise BadValue(f"'{name}' is missing.")
            return default
        if len(value) > most:
            raise BadValue(f"'{name}' has {len(value)} characters; expected at most {most}.")
        if choices and value not in choices:
            raise BadValue(
                f"'{name}' is '{_short(value)}'; expected one of {', '.join(choices)}. {did_you_mean(value, choices)}"
            )
        return value

    def whole(self, name: str, default: int | None, least: int, most: int) -> int:
        """A whole number between two bounds, both allowed."""
        value = self._raw(name)
        if value is None:
            return self._default(name, default)
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 12 and least <= int(value) <= most):
            raise BadValue(f"'{name}' is {_short(value)}; expected a whole number from {least} to {most}.")
        return int(value)

    def number(self, name: str, default: float | None, least: float, most: float) -> float:
        """A finite number between two bounds, both allowed."""
        value = self._raw(name)
        if value is None:
            return self._default(name, default)
        try:
            found = float(value) if len(value) <= 40 else math.nan
        except ValueError:
            found = math.nan
        if not least <= found <= most:  # NaN lies nowhere
            raise BadValue(f"'{name}' is {_short(value)}; expected a number from {least:g} to {most:g}.")
        return found

    def flag(self, name: str, default: bool | None) -> bool:
        """Yes or no, written 1 or 0 (or true, false)."""
        value = self._raw(name)
        if value is None:
            return self._default(name, default)
        known = {"1": True, "true": True, "0": False, "false": False}
        if value.lower() not in known:
            raise BadValue(f"'{name}' is {_short(value)}; expected 1 or 0.")
        return known[value.lower()]

    def close(self) -> None:
        """Complain about a parameter that means nothing here."""
        for name in self._given:
            if name not in self._known:
                raise BadValue(f"there is no parameter '{_short(name)}' here. {did_you_mean(name[:80], self._known)}")

    def _raw(self, name: str) -> str | None:
        self._known.add(name)
        value = self._given.get(name, "").strip()
        return value or None

    @staticmethod
    def _default(name: str, default: T | None) -> T:
        if default is None:
            raise BadValue(f"'{name}' is missing.")
        return default


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
