"""What a short text does not reach: settings that change attention once they are small, and positions far away.

Every whole number of the configuration that alters no shape is set to a few tokens. What then changes attention is a
threshold: a window, a chunk, a step of a query scale, the number of keys an index keeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Path = tuple[str, ...]
LEAST = 12  # smaller numbers are reached by the texts anyway, unless blocks are counted by them
_NEVER = (
    *("vocab_size", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "transformers_version", "max_new_tokens", "d_model", "n_embd", "n_layer", "n_head"),
)
_BLOCK = re.compile(r"block_|chunk|window|local_(attention|radius)", re.IGNORECASE)
_OTHER = ("vision", "audio", "image", "speech", "video", "vq")


def thresholds(
    settings: Mapping[str, Any], changes: Callable[[list[Path], int], bool | None]
) -> list[tuple[Path, int]]:
    """The settings that change attention when they are small, with their values.

    `changes(paths, value)` sets them so and says whether attention changes, or None where that is no model. Blocks
    are set to 1 as well, since several of them may have to fit into a text before they matter; one of which nothing
    can be learnt counts as a threshold.
    """
    every = dict(_whole_numbers(settings, ()))
    found = _changing(list(every), 4, changes)
    blocks = [path for path in every if path not in found and _BLOCK.search(path[-1])]
    found += _changing(blocks, 1, lambda paths, value: _or_unknown(changes(paths, value), paths))
    return [(path, every[path]) for path in found]


def _or_unknown(answer: bool | None, paths: list[Path]) -> bool | None:
    return True if answer is None and len(paths) == 1 else answer


def _changing(paths: list[Path], value: int, changes: Callable[[list[Path], int], bool | None]) -> list[Path]:
    """Those of some settings that change attention, found by halving."""
    found: list[Path] = []
    todo = [paths]
    while todo:
        group = todo.pop()
        answer = changes(group, value) if group else False
        if answer is False:
            continue
        if len(group) > 1:
            middle = len(group) // 2
            todo += [group[middle:], group[:middle]]
        elif answer:
            found.append(group[0])
    return found


def _whole_numbers(settings: Mapping[str, Any], at: Path) -> Iterator[tuple[Path, int]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            if not str(key).startswith(_OTHER):
                yield from _whole_numbers(value, (*at, key))
        elif isinstance(value, bool) or not isinstance(value, int) or key in _NEVER or "token" in str(key):
            continue
        elif value > (1 if _BLOCK.search(key) else LEAST):
            yield (*at, key), value


def with_values(settings: Mapping[str, Any], paths: list[Path], value: int) -> dict[str, Any]:
    """The settings with some of them set to a value."""
    changed = dict(settings)
    for path in paths:
        inside = changed
        for key in path[:-1]:
            inside[key] = dict(inside[key])
            inside = inside[key]
        inside[path[-1]] = value
    return changed


def generalised(true: int | None, at_5: int | None, at_7: int | None, value: int) -> int | None:
    """A length that was measured with a setting of 5 and of 7, at the setting's value; None: it does not follow."""
    if at_5 is None or at_7 is None:
        return true if at_5 is at_7 else None
    if at_7 - at_5 == 2:
        return value + at_5 - 5
    if at_7 - at_5 == 1:
        return value // 2 + at_5 - 2
    return true if at_5 == at_7 else None
