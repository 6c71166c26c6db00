"""Selections such as `0-3,7` and lengths such as `128k`, as users write them; which numbers can be computed with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from toposcope.core.errors import BadValue

SMALLEST, LARGEST = 1e-50, 1e50  # the product of six such numbers is still a float64
MOST_HEADS = 100_000  # of a layer; far more than any has


def computable(number: float) -> bool:
    """Whether a number is 0 or of a size whose products and quotients stay numbers; NaN and infinity are not."""
    return number == 0 or SMALLEST <= abs(number) <= LARGEST


def is_whole(number: Any) -> bool:
    """Whether this is an integer, of Python or numpy."""
    return isinstance(number, Integral) and not isinstance(number, bool)


def written_layers(layers: str | int | Sequence[int] | None) -> str | None:
    """Layers as the command line writes them, however they are given in Python: 3 is "3", [0, 1, 5] is "0-1,5"."""
    if layers is None or isinstance(layers, str):
        return layers
    numbers = list(layers) if isinstance(layers, Iterable) else [layers]
    if not all(map(is_whole, numbers)):
        raise BadValue(
            f"{_short(layers)} is not a selection of layers. Give '0-3,7', a number, or a list of numbers."
        )
    return show_range([int(number) for number in numbers])


def written_heads(heads: str | tuple[int, int] | Sequence[str | tuple[int, int]] | None) -> str | None:
    """Heads as the command line writes them: (3, 2) is "3.2", [(3, 2), "5.0"] is "3.2,5.0"."""
    if heads is None or isinstance(heads, str):
        return heads
    given: list[Any] = [heads] if _is_head(heads) or not isinstance(heads, Iterable) else list(heads)
    if not given or not all(isinstance(one, str) or _is_head(one) for one in given):
        raise BadValue(f"{_short(heads)} is not a selection of heads. Give '3.2,5.0', or pairs: [(3, 2), (5, 0)].")
    return ",".join(one if isinstance(one, str) else f"{one[0]}.{one[1]}" for one in given)


def parse_range(text: str | None, size: int, what: str = "layer") -> list[int]:
    """The indices below `size` named by `text`: 'all', numbers and first-last ranges, separated by commas."""
    if text is None or text.strip().lower() == "all":
        return list(range(size))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise BadValue(
                f"'{part.strip()[:80]}' is not a selection of {what}s. Write numbers and ranges, such as 0-3,7."
            )
        start, stop = int(first), int(last) if dash else int(first)
        if stop < start or stop >= size:
            raise BadValue(f"'{part.strip()}' names a {what} that does not exist: there are {size}, 0 to {size - 1}.")
        chosen.update(range(start, stop + 1))
    return sorted(chosen)


def show_range(indices: list[int]) -> str:
    """The shortest way to write the indices: [0, 1, 2, 3, 7] becomes '0-3,7'."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_heads(text: str) -> list[tuple[int, int]]:
    """Single heads as (layer, head), written `3.2,5.0-4`; whether they exist is for the model to say."""
    found: list[tuple[int, int]] = []
    for part in text.split(","):
        layer, dot, heads = part.strip().partition(".")
        first, dash, last = heads.partition("-")
        if not (dot and _is_number(layer) and _is_number(first) and (not dash or _is_number(last))):
            raise BadValue(
                f"'{part.strip()[:80]}' is not a head. Write layer.head, such as 3.2, or 3.0-4 for several."
            )
        if dash and int(last) - int(first) > MOST_HEADS:
            raise BadValue(f"'{part.strip()}' names more heads than any layer has. Write 3.0-4 for five of them.")
        found += [(int(layer), head) for head in range(int(first), int(last if dash else first) + 1)]
    return sorted(set(found))


def parse_length(text: str | int, *, least: int = 1, most: int = 2**40, what: str = "length") -> int:
    """A number of tokens: 4096, or 128k and 1M, in units of 1024 and 1024 x 1024."""
    written = str(text).strip()
    digits, unit = (written[:-1], written[-1].lower()) if written[-1:].lower() in ("k", "m") else (written, "")
    number = int(digits) * {"": 1, "k": 2**10, "m": 2**20}[unit] if digits.isdecimal() and len(digits) <= 15 else -1
    if not least <= number <= most:
        raise BadValue(
            f"'{written[:80]}' is no {what}: expected a number from {least} to {most}, such as 4096 or 128k."
        )
    return number


def _is_head(head: Any) -> bool:
    return isinstance(head, tuple | list) and len(head) == 2 and all(map(is_whole, head))


def _short(given: Any) -> str:
    words = repr(given)
    return words if len(words) <= 80 else f"{words[:77]}..."


def _is_number(text: str) -> bool:
    """Digits, and not more of them than a number of layers or heads can have."""
    return text.isdecimal() and len(text) <= 9
