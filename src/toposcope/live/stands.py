"""Where the queries and keys of one attention stood in one way of running, beside where they should.

Shapes: B sequences, T columns (padding included), N queries, M keys, H heads, S known positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.live.ruler import NOWHERE, Array, BiasRuler, Positions, Reading, Ruler, by_heads, doubled
from toposcope.live.watch import WatchedAttention
from toposcope.live.ways import Pass, Unreadable, Way


@dataclass(frozen=True, eq=False)
class Placed:
    """Tokens as they were read in one pass: where they stood, and where they should."""

    seen_N: Positions
    places_N: Positions

    def wrong(self, shift: int) -> Positions:
        """Rows of two numbers: what does not stand at its place moved by `shift`, and that place."""
        told_N2 = np.stack([self.seen_N, self.places_N + shift], axis=1)
        found: Positions = told_N2[told_N2[:, 0] != told_N2[:, 1]]
        return found


@dataclass(frozen=True, eq=False)
class Stood:
    """The tokens of one row in one attention, padding left out, pass by pass.

    `shift` is what most queries are away from their places; a relative encoding does not notice one that all share.
    """

    row: int
    padded: bool
    queries: tuple[Placed, ...]
    keys: tuple[Placed, ...]
    shift: int

    @property
    def wrong_queries(self) -> Positions:
        return np.concatenate([each.wrong(self.shift) for each in self.queries])

    @property
    def wrong_keys(self) -> Positions:
        return np.concatenate([each.wrong(self.shift) for each in self.keys])

    @property
    def together(self) -> bool:
        """Whether all queries and keys keep their distances: at most, all of them are shifted alike."""
        return not len(self.wrong_queries) and not len(self.wrong_keys)

    @property
    def first(self) -> int:
        """The first place of the text whose query or key is elsewhere."""
        wrong = np.concatenate([self.wrong_queries, self.wrong_keys])
        return int(wrong[:, 1].min()) - self.shift if len(wrong) else 0

    @property
    def turned_again(self) -> bool:
        """Whether what is elsewhere has turned twice: at twice its place, or (of keys alone) beyond it."""
        queries, keys = self.wrong_queries, self.wrong_keys
        if len(queries):
            return bool(np.all(queries[:, 0] == 2 * queries[:, 1]))
        return len(keys) > 0 and bool(np.all((keys[:, 0] == NOWHERE) | (keys[:, 0] > keys[:, 1])))

    def __str__(self) -> str:
        keys = _say(self.keys[-1:])
        return f"queries at {_say(self.queries)}; {f'keys at {keys}' if keys else 'keys not read'}"


def stood(way: Way, passes: Sequence[Pass], number: int, query: Ruler, key: Ruler) -> list[Stood]:
    """Where the tokens of every row stood in attention `number` of each pass, by their vectors."""
    shown, held = [], []
    for each in passes:
        attention, rows = each.attentions[number], len(way.real_BT)
        query_BHNR, key_BGMR = (by_heads(side, rows) for side in (attention.query_BHNR, attention.key_BGMR))
        if query_BHNR is None or key_BGMR is None or query_BHNR.shape[2] != each.stop - each.start:
            sizes = " x ".join(map(str, attention.query_BHNR.shape))
            raise Unreadable(f"queries of {sizes} were seen in a run of {rows} x {each.stop - each.start} tokens")
        columns = _key_columns(way, each, key_BGMR.shape[2])
        shown.append((query.reading(query_BHNR), each.columns))
        held.append((key.reading(key_BGMR[:, :, : len(columns)]), columns))
    found = []
    for row in range(len(way.real_BT)):
        asked = [_of_row(way, row, *each) for each in shown]
        shift = _shift(asked)
        queries = tuple(Placed(read.at(places[None] + shift)[0], places) for read, places in asked)
        keys = tuple(
            Placed(read.at(places[None] + shift)[0], places)
            for read, places in (_of_row(way, row, *each) for each in held)
        )
        found.append(Stood(row, bool(way.padded_B[row]), queries, keys, shift))
    return found


def _of_row(way: Way, row: int, read: Reading, columns: NDArray[np.intp]) -> tuple[Reading, Positions]:
    """What was read of the real tokens of one row, and their places."""
    real_N = way.real_BT[row, columns]
    return read.cut(slice(row, row + 1), real_N), way.places_BT[row, columns][real_N]


def biased(way: Way, passes: Sequence[Pass], number: int, ruler: BiasRuler) -> list[Stood]:
    """The same by what is added to the logits, which tells of each key how far it is from the query."""
    found = []
    for row in range(len(way.real_BT)):
        real_T, places_T = way.real_BT[row], way.places_BT[row]
        queries, keys = [], []
        for each in passes:
            added_HNM = added_to_logits(each.attentions[number], row)
            if added_HNM is None:
                continue
            columns = _key_columns(way, each, added_HNM.shape[-1])
            seen_M = real_T[columns]
            for n in each.columns[real_T[each.columns]]:
                added_HM = added_HNM[:, n - each.start, : len(columns)]
                use_M = seen_M & (columns <= n) if ruler.causal else seen_M
                if not (use_M & (columns == n)).any():
                    continue
                offsets = ruler.read(
                    added_HM[:, use_M] - added_HM[:, columns == n], places_T[n] - places_T[columns[use_M]]
                )
                places = np.where(offsets == ruler.none, NOWHERE, places_T[n] - offsets)
                keys.append(Placed(places, places_T[columns[use_M]]))
            queries.append(Placed(*[places_T[each.columns][real_T[each.columns]]] * 2))
        if keys:
            found.append(Stood(row, bool(way.padded_B[row]), tuple(queries), tuple(keys), 0))
    return found


def added_to_logits(attention: WatchedAttention, row: int) -> Array | None:
    """What was added to the logits of a row whose content is nothing (H, N, M); None where nothing was."""
    shown = attention.logits_BHNM if attention.logits_BHNM is not None else attention.added
    if shown is None or shown.dim() != 4 or not shown.is_floating_point():
        return None
    return doubled(shown[min(row, shown.shape[0] - 1)])


def _shift(read: Sequence[tuple[Reading, Positions]]) -> int:
    """By how much most tokens are away from their places; of several that fit alike, the least."""
    alike_NS = np.concatenate([each.alike_BNS[0] for each, _ in read])
    places_N = np.concatenate([places for _, places in read])
    shift_NS = np.arange(alike_NS.shape[1]) - places_N[:, None]
    shifts, counts = np.unique(shift_NS[alike_NS], return_counts=True)
    most = shifts[counts == counts.max()] if len(counts) else np.zeros(1, dtype=np.int64)
    return int(most[np.abs(most).argmin()])


def _key_columns(way: Way, each: Pass, count: int) -> NDArray[np.intp]:
    """The columns whose keys were shown: all, the last ones (a window), or none where it is not known."""
    if way.cache == "static":
        return np.arange(each.stop if count == way.real_BT.shape[1] else 0)
    return np.arange(max(each.stop - count, 0), each.stop) if count <= each.stop else np.arange(0)


def _say(passes: Sequence[Placed]) -> str:
    """'0-6, 0-4, 0-7': runs of positions in the order in which they ran."""
    runs: list[list[int]] = []
    for position in (int(each) for placed in passes for each in placed.seen_N):
        if runs and position == NOWHERE == runs[-1][1]:
            continue
        if runs and NOWHERE not in (position, runs[-1][1]) and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    told = ["none of the known places" if each == str(NOWHERE) else each for each in told]
    return ", ".join(told[:8]) + (", …" if len(told) > 8 else "")
