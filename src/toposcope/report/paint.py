"""Colours. Their one home is `assets/toposcope.css`; pages read them there in the browser, all else from here."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from toposcope.report.blocks import Measure
from toposcope.report.vision import NEAR, apart

SHADES = (0.0, 0.16, -0.13, 0.3, -0.25)  # of an encoding's colour, for its variants: towards white, or black
DASHES = ((1, 0), (7, 4), (2, 3), (11, 3, 2, 3), (16, 4))  # stroke and gap; the first is a whole line
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


@cache
def _named() -> dict[str, str]:
    """The variables of the light theme."""
    text = resources.files("toposcope.report").joinpath("assets/toposcope.css").read_text(encoding="utf-8")
    light = text[text.index(":root {") : text.index("@media")]
    return dict(re.findall(r"--([\w-]+): ([^;]+);", light))


@cache
def colour(name: str) -> str:
    """The colour of a name as #rrggbb: converges, accent, palette-0, enc-rope ..."""
    value = _named()[name]
    through = re.fullmatch(r"var\(--([\w-]+)\)", value)
    return colour(through[1]) if through else value


@cache
def palette() -> tuple[str, ...]:
    """Colours for categories that have none of their own."""
    return tuple(value for name, value in _named().items() if name.startswith("palette-"))


def encoding_colours(specs: Iterable[str]) -> dict[str, str]:
    """A colour for each encoding: its name's, in a shade of their own for variants. The same in every picture.

    "rope" is --enc-rope of the stylesheet; "rope:base=500000" a shade chosen by its parameters. Only where two
    variants of one picture fall on the same shade does the later one move on.
    """
    found: dict[str, str] = {}
    for spec in dict.fromkeys(specs):
        name, _, parameters = spec.partition(":")
        base = _named().get(f"enc-{name}") or palette()[_number(name) % len(palette())]
        start = 1 + _number(parameters) % (len(SHADES) - 1) if parameters else 0
        order = [SHADES[(start + step) % len(SHADES)] for step in range(len(SHADES))]
        shades = [_shade(base, amount) for amount in order]
        found[spec] = next((each for each in shades if each not in found.values()), shades[0])
    return found


def dashes(colours: Sequence[str]) -> list[tuple[int, ...]]:
    """A dash for each of these colours, so that no two curves are alike to an eye that lacks a kind of cone.

    They go round; one that would meet a colour too near to its own moves on, or goes where the nearest is farthest.
    """
    found: list[int] = []
    for i, own in enumerate(colours):
        order = [(i + step) % len(DASHES) for step in range(len(DASHES))]
        nearest = {
            each: min((apart(own, colours[j]) for j in range(i) if found[j] == each), default=1.0) for each in order
        }
        free = next((each for each in order if nearest[each] >= NEAR), None)
        found.append(max(order, key=nearest.__getitem__) if free is None else free)
    return [DASHES[each] for each in found]


def painted(measure: Measure, values: Sequence[Any]) -> list[str]:
    """The colours of a map's cells, as a page paints them in its light theme."""
    if measure.kind == "category":
        words = list(measure.words)
        return [_word_colour(str(value), words) for value in values]
    known = [float(value) for value in values if isinstance(value, int | float)]
    low = measure.low if measure.low is not None else min(known, default=0.0)
    high = measure.high if measure.high is not None else max(known, default=1.0)
    diverging = measure.kind == "diverging"
    if diverging:
        low, high = measure.around(low, high)
    if not high > low:
        high = low + 1
    names = ("low-2", "low-1", "mid", "high-1", "high-2") if diverging else tuple(f"ramp-{i}" for i in range(5))
    stops = [colour(name) for name in (reversed(names) if diverging and measure.harm else names)]
    logarithmic = measure.kind == "logarithmic" and low > 0

    def at(value: float) -> float:
        return math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)

    return [colour("wash") if value is None else _between(stops, at(float(value))) for value in values]


def _word_colour(word: str, words: Sequence[str]) -> str:
    if word in ("none", "None"):
        return colour("wash")
    if word in _named():
        return colour(word)
    return palette()[words.index(word) % len(palette())] if word in words else colour("faint")


def _between(stops: Sequence[str], at: float) -> str:
    place = min(1.0, max(0.0, at)) * (len(stops) - 1)
    below = min(len(stops) - 2, int(place))
    pairs = zip(_parts(stops[below]), _parts(stops[below + 1]), strict=True)
    return _hex(first + (place - below) * (second - first) for first, second in pairs)


def _shade(base: str, amount: float) -> str:
    towards = 255 if amount > 0 else 0
    return _hex(part + abs(amount) * (towards - part) for part in _parts(base))


def _parts(value: str) -> tuple[int, int, int]:
    return int(value[1:3], 16), int(value[3:5], 16), int(value[5:7], 16)


def _hex(parts: Iterable[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)


def _number(words: str) -> int:
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big")
