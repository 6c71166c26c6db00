"""What a head attends to, as shares of its real attention, and when such a share earns the head a name.

A score is the mean over queries of the attention that falls on

* `previous`, `next`, `self`: the token one before, one after (heads that see the future), the token itself;
* `first`: token 0, the usual place of a sink;
* `local`: all tokens at most 8 away;
* `induction`: tokens that follow an earlier occurrence of the query's token (asked of repeated random tokens).

Token 0 is no query: it may see nothing but itself. Each score comes with what uniform attention over the same visible
keys would have scored. A head is named when score s and uniform score u satisfy s >= T and (s - u) / (1 - u) >= T / 2
with the pattern's threshold T of `THRESHOLDS`; uniform attention is never named, however short the text. `local` is
given only to heads that are not named for one of the tokens within. A head may follow several patterns and is named
for each: an induction head rests on token 0 where nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from toposcope.models.tracing.logits import Grid, HeadLogits, probabilities, rows

Array = NDArray[np.float64]
NEAR = 8
THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {"previous": 0.35, "next": 0.35, "self": 0.35, "first": 0.5, "induction": 0.35, "local": 0.8}
)
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "previous": "previous token",
        "next": "next token",
        "self": "itself",
        "first": "first token",
        "induction": "induction",
        "local": "local window",
    }
)


@dataclass(frozen=True)
class Score:
    """The mean attention on a pattern's keys, and the same for uniform attention over what is visible."""

    value: float
    uniform: float


@dataclass(frozen=True, eq=False)
class Patterns:
    """The scores of one head on one sequence; a pattern that no query can show is missing.

    `distance` is the mean of |i - j| under attention, `entropy` that of its rows in nats. `square` is the sum of the
    squared logits that are visible, before the cap. `output_BV` is attention on the values in the last block of rows,
    `seen_from` its first row.
    """

    scores: Mapping[str, Score]
    distance: float
    entropy: float
    square: float
    output_BV: Array | None
    seen_from: int


def patterns(head: HeadLogits, ids: NDArray[np.int64] | None = None, values_NV: Array | None = None) -> Patterns:
    """Walk through the rows of one head; with `ids`, the tokens' numbers, induction is scored as well."""
    sums: dict[str, list[Array]] = {}
    distance = entropy = square = 0.0
    queries = 0
    output_BV, start = None, 0
    for block in rows(head):
        grid = block.grid
        seen_BM = np.where(grid.visible_BM, block.logits_BM, 0.0)
        square += float(np.vdot(seen_BM, seen_BM))
        weights_BM, entropy_B = probabilities(head, block)
        keep_B = grid.queries_B > 0
        for name, (on_B, uniform_B, there_B) in _scores(grid, weights_BM, ids, head.causal).items():
            counted = keep_B & there_B
            sums.setdefault(name, []).append(np.array([on_B[counted].sum(), uniform_B[counted].sum(), counted.sum()]))
        away_B = np.einsum("bm,bm->b", weights_BM, grid.away_BM)
        distance += float(away_B[keep_B].sum())
        entropy += float(entropy_B[keep_B].sum())
        queries += int(keep_B.sum())
        if values_NV is not None:
            output_BV = weights_BM @ values_NV[grid.first : grid.first + weights_BM.shape[1]]
        start = grid.start
    found = {}
    for name, parts in sums.items():
        on, uniform, count = np.sum(parts, axis=0)
        if count:
            found[name] = Score(float(on / count), float(uniform / count))
    return Patterns(
        scores=found,
        distance=distance / max(queries, 1),
        entropy=entropy / max(queries, 1),
        square=square,
        output_BV=output_BV,
        seen_from=start,
    )


def induction_score(head: HeadLogits, ids: NDArray[np.int64]) -> Score | None:
    """The score of induction that `patterns` gives, and nothing else, in half of the time."""
    parts = []
    for block in rows(head):
        weights_BM, _ = probabilities(head, block)
        on_B, uniform_B, there_B = _induction(block.grid, weights_BM, ids)
        counted = (block.grid.queries_B > 0) & there_B
        parts.append([on_B[counted].sum(), uniform_B[counted].sum(), counted.sum()])
    on, uniform, count = np.sum(parts, axis=0)
    return Score(float(on / count), float(uniform / count)) if count else None


def names(scores: Mapping[str, Score]) -> tuple[str, ...]:
    """The patterns a head is named for, in the order of `THRESHOLDS`; see the head of this file for the rule."""
    found = [name for name, score in scores.items() if name in THRESHOLDS and stands_out(name, score)]
    if {"previous", "next", "self"} & set(found):
        found = [name for name in found if name != "local"]
    return tuple(sorted(found, key=list(THRESHOLDS).index))


def together(names: Iterable[str]) -> tuple[str, ...]:
    """The patterns of one head in the order in which they are read: what tells most of it first, resting last."""
    order = ("induction", "previous", "next", "self", "local", "first")
    return tuple(sorted(names, key=lambda name: order.index(name) if name in order else len(order)))


def stands_out(name: str, score: Score) -> bool:
    """Whether a score passes its threshold, and lies far enough above that of uniform attention."""
    threshold = THRESHOLDS[name]
    if score.uniform >= 1:
        return False
    return score.value >= threshold and (score.value - score.uniform) / (1 - score.uniform) >= threshold / 2


# -------------------------------------------------------------------- inside
@dataclass(frozen=True, eq=False)
class _Near:
    """The keys up to `NEAR` before and after each query, as columns of a grid (T offsets), and which are seen."""

    columns_BT: NDArray[np.intp]
    seen_BT: NDArray[np.bool_]
    even_B: Array  # uniform attention on one key


@lru_cache(maxsize=4)
def _near(grid: Grid) -> _Near:
    width = grid.visible_BM.shape[1]
    column_BT = (grid.queries_B - grid.first)[:, None] - np.arange(-NEAR, NEAR + 1)
    inside_BT = (column_BT >= 0) & (column_BT < width)
    safe_BT = np.clip(column_BT, 0, width - 1)
    seen_BT = np.take_along_axis(grid.visible_BM, safe_BT, axis=1) & inside_BT
    return _Near(safe_BT, seen_BT, 1 / grid.visible_BM.sum(axis=1))


def _scores(
    grid: Grid, weights_BM: Array, ids: NDArray[np.int64] | None, causal: bool
) -> dict[str, tuple[Array, Array, NDArray[np.bool_]]]:
    """For each pattern: attention on its keys, that of uniform attention, and whether the query has such a key."""
    near = _near(grid)
    seen_BT, even_B = near.seen_BT, near.even_B
    near_BT = np.where(seen_BT, np.take_along_axis(weights_BM, near.columns_BT, axis=1), 0.0)
    found = {}
    for name, offset in (("previous", 1), ("self", 0), ("next", -1)):
        if not (causal and offset < 0):
            seen_B = seen_BT[:, NEAR + offset]
            found[name] = (near_BT[:, NEAR + offset], even_B * seen_B, seen_B)
    found["local"] = (near_BT.sum(axis=1), even_B * seen_BT.sum(axis=1), np.ones(len(even_B), dtype=bool))
    if grid.first == 0:
        seen_B = grid.visible_BM[:, 0]
        found["first"] = (weights_BM[:, 0], even_B * seen_B, seen_B)
    if ids is not None:
        found["induction"] = _induction(grid, weights_BM, ids)
    return found


def _induction(grid: Grid, weights_BM: Array, ids: NDArray[np.int64]) -> tuple[Array, Array, NDArray[np.bool_]]:
    before_M = np.where(grid.keys_M > 0, ids[grid.keys_M - 1], -1)
    follows_BM = (before_M == ids[grid.queries_B][:, None]) & (grid.offsets_BM > 0) & grid.visible_BM
    count_B = follows_BM.sum(axis=1)
    return np.where(follows_BM, weights_BM, 0.0).sum(axis=1), _near(grid).even_B * count_B, count_B > 0
