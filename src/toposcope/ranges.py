"""Selections such as `0-3,7`, as users write them."""

from __future__ import annotations

from toposcope.errors import BadValue


def parse_range(text: str | None, size: int, what: str = "layer") -> list[int]:
    """The indices below `size` named by `text`: 'all', numbers and first-last ranges, separated by commas."""
    if text is None or text.strip().lower() == "all":
        return list(range(size))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise BadValue(
                f"'{part.strip()}' is not a selection of {what}s. Write numbers and ranges, such as 0-3,7."
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
