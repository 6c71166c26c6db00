"""Every task's answers, read off one sentence slowly: the reference for the vectorised generators.

A reader takes the valid ids of one sentence and returns {place: answer}, or {None: answer} for a pooled task. It
returns None for a sentence that is not of the task's form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Answers = dict[int | None, int] | None


def distance(ids: list[int], task: Any) -> Answers:
    if ids.count(1) != 1 or ids.count(2) != 1 or ids.index(2) <= ids.index(1):
        return None
    return {None: ids.index(2) - ids.index(1)}


def count(ids: list[int], task: Any) -> Answers:
    return {None: sum(1 for token in ids if token <= task.triggers)}


def previous(ids: list[int], task: Any) -> Answers:
    mark = ids.index(1)
    return {mark: ids[mark - 1]} if mark else None


def copy(ids: list[int], task: Any) -> Answers:
    half = len(ids) // 2
    if ids[half:] != [1] * half or 1 in ids[:half]:
        return None
    return {half + i: ids[i] for i in range(half)}


def reverse(ids: list[int], task: Any) -> Answers:
    half = len(ids) // 2
    if ids[half:] != [1] * half or 1 in ids[:half]:
        return None
    return {half + i: ids[half - 1 - i] for i in range(half)}


def induction(ids: list[int], task: Any) -> Answers:
    *prefix, last = ids
    if len(set(prefix)) != len(prefix) or last not in prefix[:-1]:
        return None
    return {len(prefix): prefix[prefix.index(last) + 1]}


def index(ids: list[int], task: Any) -> Answers:
    *letters, place = ids
    if place > task.places or min(letters) <= task.places:
        return None
    return {len(letters): letters[place - 1]}


def dyck(ids: list[int], task: Any) -> Answers:
    word = "".join("?()"[token] for token in ids)
    while "()" in word:
        word = word.replace("()", "")
    return {None: int(not word)}


READERS: dict[str, Callable[[list[int], Any], Answers]] = {
    each.__name__: each for each in (distance, count, previous, copy, reverse, induction, index, dyck)
}


def sentences(batch: Any) -> list[list[int]]:
    """The valid ids of every sentence."""
    return [ids[:length] for ids, length in zip(batch.ids_BN.tolist(), batch.lengths_B.tolist(), strict=True)]


def answers(task: Any, batch: Any) -> list[Answers]:
    """What the batch's labels say, in the form of a reader."""
    if task.reads == "pooled":
        return [{None: task.answers[label]} for label in batch.labels.tolist()]
    return [
        {place: task.answers[label] for place, label in enumerate(labels) if label != -1}
        for labels in batch.labels.tolist()
    ]
