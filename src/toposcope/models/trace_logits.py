"""Pictures of logits: one head's visible logits on one sequence beside their Toeplitz part, as block means.

The Toeplitz part has on every diagonal i - j = t the mean of the visible logits there: what depends on the offset
alone. It is computed from every entry of the whole matrix, a block of rows at a time, and only then made smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.models.trace_rows import HeadLogits, rows

Array = NDArray[np.float64]
Picture = tuple[tuple[float | None, ...], ...]
SIDE = 64  # cells along each side of a picture, at most
DIGITS = 4  # that are kept: a picture needs no more


@dataclass(frozen=True)
class LogitPicture:
    """The logits of a head on the first sequence, before cap and softmax, and their Toeplitz part.

    Cell (a, b) is the mean over the visible pairs of queries a c, ..., a c + c - 1 and keys b c, ..., b c + c - 1,
    where c is `cell`; None where no pair is visible. `share` is how much of the visible logits' square the Toeplitz
    part has (None for logits of 0).
    """

    layer: int
    head: int
    tokens: int
    cell: int
    share: float | None
    logits: Picture
    toeplitz: Picture

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"


def picture(layer: int, head: HeadLogits, side: int = SIDE) -> LogitPicture:
    """Two passes over the rows: the mean of every diagonal, then the means of cells of both matrices."""
    length = head.length
    means_T, share = _diagonals(head)
    cell = -(-length // side)
    across = -(-length // cell)
    sums, fitted, counts = (np.zeros(across * across) for _ in range(3))
    for block in rows(head):
        at_BM = (block.queries_B // cell)[:, None] * across + block.keys_M // cell
        at = at_BM[block.visible_BM]
        values = (block.logits_BM[block.visible_BM], means_T[block.offsets_BM[block.visible_BM] + length - 1])
        for total, each in zip((sums, fitted), values, strict=True):
            total += np.bincount(at, each, minlength=len(total))
        counts += np.bincount(at, minlength=len(counts))
    both = (_cells(total, counts, across) for total in (sums, fitted))
    return LogitPicture(layer, head.head, length, cell, share, *both)


def _diagonals(head: HeadLogits) -> tuple[Array, float | None]:
    """The mean visible logit at t = -(n-1) .. n-1 (0 where none is seen), and these means' share of the square."""
    length, square = head.length, 0.0
    sums_T, counts_T = np.zeros(2 * length - 1), np.zeros(2 * length - 1)
    for block in rows(head):
        at = block.offsets_BM[block.visible_BM] + length - 1
        logits = block.logits_BM[block.visible_BM]
        square += float(logits @ logits)
        sums_T += np.bincount(at, logits, minlength=len(sums_T))
        counts_T += np.bincount(at, minlength=len(counts_T))
    means_T = np.divide(sums_T, counts_T, out=np.zeros_like(sums_T), where=counts_T > 0)
    return means_T, min(float(counts_T @ means_T**2) / square, 1.0) if square > 0 else None


def _cells(sums: Array, counts: Array, across: int) -> Picture:
    means = [
        None if seen == 0 else float(f"{total / seen:.{DIGITS}g}") for total, seen in zip(sums, counts, strict=True)
    ]
    return tuple(tuple(means[first : first + across]) for first in range(0, len(means), across))
