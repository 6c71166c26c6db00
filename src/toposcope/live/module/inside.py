"""What queries, keys and logits say about the rotation that made them: arrays in, numbers out.

All functions take the arrays of a run in which every position holds the same token, so that whatever differs between
positions is the work of the encoding. Shapes: B samples, H heads, N positions, R head width, F pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Array, Pairing
from toposcope.live import fit

Mask = NDArray[np.bool_]
MOVES = 0.02  # of its own size: how far a channel must move to be paired
NEGLIGIBLE = 1e-4  # what absolute positions leave beside a large token
NO_TURNING = 0.1  # of a pair's size: more of its movement that is no turning, and it is no pair


@dataclass(frozen=True)
class Split:
    """How a table of logits varies: with offsets, with rows alone, with sums, or otherwise; rms over heads."""

    total: float  # about the mean of the visible entries
    by_offset: float  # what the diagonals' means carry
    rest: float  # what they leave
    within_rows: float  # what is left when each row's mean is taken away
    off_sums: float  # what the antidiagonals' means leave


def split(logits_HNN: Array, visible_NN: Mask) -> Split:
    """Take the visible logits apart by offset i - j, by row, and by sum i + j."""
    n = len(visible_NN)
    row_N1, column_1N = np.indices((n, n))
    total: list[float] = []
    rest: list[float] = []
    rows: list[float] = []
    sums: list[float] = []
    for table_NN in logits_HNN:
        values = table_NN[visible_NN]
        total.append(((values - values.mean()) ** 2).mean())
        for labels, into in ((row_N1 - column_1N + n, rest), (row_N1, rows), (row_N1 + column_1N, sums)):
            group = labels[visible_NN]
            size = np.bincount(group)
            mean = np.bincount(group, values) / np.maximum(size, 1)
            into.append(((values - mean[group]) ** 2).mean())
    t, r, w, s = (float(np.sqrt(np.mean(part))) for part in (total, rest, rows, sums))
    return Split(t, float(np.sqrt(max(t * t - r * r, 0.0))), r, w, s)


def split_but_rows(logits_HNN: Array, visible_NN: Mask) -> Split:
    """The same with what is constant along each row taken out, which a softmax does not see.

    BLOOM adds m j, which is -m (i - j) up to the constant m i of its row: by offset, for all that matters.
    """
    n = len(visible_NN)
    i, j = np.nonzero(visible_NN)
    design = np.zeros((len(i), 3 * n))
    design[np.arange(len(i)), i] = 1
    design[np.arange(len(i)), 2 * n + i - j - 1] += 1  # offsets -(n-1) .. n-1 stand behind the n rows
    values_PH = logits_HNN[:, visible_NN].T
    fit_PH = design @ np.linalg.lstsq(design, values_PH, rcond=None)[0]
    rest = size(values_PH - fit_PH)
    total = split(logits_HNN, visible_NN).within_rows
    return Split(total, float(np.sqrt(max(total**2 - rest**2, 0.0))), rest, total, total)


def product(q_BHNR: Array, k_BHNR: Array) -> Array:
    """q k^T, (B, H, N, N)."""
    return q_BHNR @ k_BHNR.swapaxes(2, 3)


def size(vectors: Array) -> float:
    """Root mean square of all entries."""
    return float(np.sqrt(np.mean(vectors**2)))


def turning(vectors_BHNR: Array) -> float:
    """How much the direction of the vectors varies over positions, relative to their length."""
    unit = directions(vectors_BHNR)
    return float(np.sqrt(np.mean(np.sum((unit - unit.mean(axis=2, keepdims=True)) ** 2, axis=-1))))


def directions(vectors_BHNR: Array) -> Array:
    """The vectors at length 1 (a vector of length 0 stays)."""
    length = np.linalg.norm(vectors_BHNR, axis=-1, keepdims=True)
    return vectors_BHNR / np.where(length > 0, length, 1.0)


def stretching(vectors_BHNR: Array) -> float:
    """How much the length of the vectors varies over positions, relative to their mean length."""
    length = np.linalg.norm(vectors_BHNR, axis=-1)
    mean = length.mean(axis=2, keepdims=True)
    return float(np.max(np.abs(length - mean) / np.where(mean > 0, mean, 1.0)))


def batch_spread(vectors_BHNR: Array) -> float:
    """How much the samples of a batch differ, though all hold the same tokens, relative to the vectors' size."""
    scale = size(vectors_BHNR)
    return 0.0 if scale == 0 else size(vectors_BHNR - vectors_BHNR[:1]) / scale


def heads_first(vectors_BHNR: Array) -> Array:
    """The same vectors read as (H, B, N, R): for modules that fold the batch behind the heads."""
    batch, heads, n, wide = vectors_BHNR.shape
    return vectors_BHNR.reshape(heads, batch, n, wide).swapaxes(0, 1)


@dataclass(frozen=True, eq=False)
class TurningPairs:
    """The pairs of channels that turn together, and the angle of each per position.

    Pairs too slow to be told apart are left out; `channels` are all that move at all, slow ones included.
    """

    pairs_F2: NDArray[np.intp]
    angle_F: Array
    channels: NDArray[np.intp]

    @property
    def pairing(self) -> Pairing | None:
        """Neighbours, or apart by half the rotated width; None where a single pair leaves it open."""
        gap = self.pairs_F2[:, 1] - self.pairs_F2[:, 0]
        if len(gap) == 1 and gap[0] == 1:
            return None
        return "interleaved" if np.median(gap) == 1 else "half"

    def all_pairs(self) -> NDArray[np.intp]:
        """The pairs with the slow ones filled in, as the pairing has them."""
        first = int(self.channels.min())
        if self.pairing == "half":
            half = int(np.median(self.pairs_F2[:, 1] - self.pairs_F2[:, 0]))
            return first + np.arange(2 * half, dtype=np.intp).reshape(2, half).T
        count = (int(self.channels.max()) - first + 2) // 2
        return first + np.arange(2 * count, dtype=np.intp).reshape(count, 2)


def find_turns(vectors_BHNR: Array) -> TurningPairs | None:
    """The pairs of channels that turn together, where any do; slow ones are left out."""
    x_TPHR = vectors_BHNR.swapaxes(1, 2)
    found = fit.turning(x_TPHR, fit.partners(x_TPHR, NEGLIGIBLE, floor=MOVES).pairs_F2)
    turning = np.flatnonzero(found.remainder_PF.max(axis=0, initial=0.0) < NO_TURNING)
    if not len(turning):
        return None
    angle_F, _ = fit.frequencies(found, np.arange(x_TPHR.shape[1]), NEGLIGIBLE)
    return TurningPairs(found.pairs_F2[turning], angle_F[turning], np.flatnonzero(fit.movement(x_TPHR) > 3e-6))


def starting_position(
    vectors_NR: Array, turns: TurningPairs, maps: Sequence[Array], length: int, *, within: int = 3
) -> int | None:
    """At which position the rotation of these queries (or keys) starts: 0 where the first is not turned at all.

    The first vector, turned back by s positions, is looked for in the outputs of the module's own maps before the
    rotation (up to a positive factor); the s with which it is found is the answer, None where none is.
    """
    first, last = int(turns.pairs_F2.min()), int(turns.pairs_F2.max())
    wide = last - first + 1
    rows = [row for row in (_unmoved(part, length) for part in maps) if row is not None and len(row) >= wide]
    if not rows or wide < 4:
        return None
    z_F = vectors_NR[0, turns.pairs_F2[:, 0]] + 1j * vectors_NR[0, turns.pairs_F2[:, 1]]
    best: tuple[float, int | None] = (0.0, None)
    for s in sorted(range(-within, within + 1), key=abs):
        back_R = vectors_NR[0].copy()
        turned = z_F * np.exp(-1j * s * turns.angle_F)
        back_R[turns.pairs_F2[:, 0]], back_R[turns.pairs_F2[:, 1]] = turned.real, turned.imag
        target = back_R[first : last + 1] / np.linalg.norm(back_R[first : last + 1])
        for row in rows:
            windows = np.lib.stride_tricks.sliding_window_view(row, wide)
            length_W = np.linalg.norm(windows, axis=1)
            match = float(np.max(windows @ target / np.where(length_W > 0, length_W, 1.0)))
            if match > best[0]:
                best = (match, s)
    return best[1] if best[0] > 1 - 1e-4 else None


def _unmoved(part: Array, length: int) -> Array | None:
    """A map's output for one token, where it is the same at all positions; None where it is not."""
    scale = np.abs(part).max(initial=0.0)
    if scale == 0:
        return None
    if part.ndim == 2 and part.shape[0] % length == 0:
        return part[0] if np.abs(part - part[:1]).max() <= 1e-4 * scale else None
    for axis in (axis for axis, n in enumerate(part.shape[:-1]) if n == length):
        first = np.take(part, [0], axis=axis)
        if np.abs(part - first).max() <= 1e-4 * scale:
            return first.reshape(-1)
    return None
