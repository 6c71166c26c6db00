"""The logits of one head, a block of query rows at a time: no n x n matrix is ever held. And small pictures of them.

A picture sets the visible logits of one sequence beside their Toeplitz part, which has on every diagonal i - j = t
the mean of the visible logits there: what depends on the offset alone. Both are computed from every entry of the
whole matrix and only then made smaller.

Shape suffixes: N tokens, R head width, B query rows of a block, M the keys that any of them sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Encoding, LogitBias
from toposcope.models.content import Content
from toposcope.spectra.contraction import turned

Array = NDArray[np.float64]
Visible = NDArray[np.bool_]
Picture = tuple[tuple[float | None, ...], ...]
ENTRIES = 1_000_000  # logits of a block: 8 MB
SIDE = 64  # cells along each side of a picture, at most
DIGITS = 4  # that a picture keeps


@dataclass(frozen=True, eq=False)
class HeadContent:
    """What one head of a `Content` works on, before position acts, apart from the model that it belongs to."""

    q_NR: Array
    k_NR: Array
    v_NV: Array
    encoding: Encoding
    head: int
    scale: float
    causal: bool
    reach: int | None
    softcap: float | None
    sink: float | None

    @property
    def length(self) -> int:
        return len(self.q_NR)


def head_content(content: Content, head: int, sink: float | None = None) -> HeadContent:
    """One head of one sequence; `sink` is a logit that takes attention and gives nothing (GPT-OSS)."""
    spec = content.layer.spec
    return HeadContent(
        q_NR=content.q_HNR[head],
        k_NR=content.k_HMR[head],
        v_NV=content.v_HMV[head],
        encoding=content.encoding,
        head=head,
        scale=content.scale,
        causal=spec.causal,
        reach=spec.reach,
        softcap=spec.softcap,
        sink=sink,
    )


@dataclass(frozen=True, eq=False)
class HeadLogits:
    """What one head's attention on one sequence is made of: S = q k^T + b, q turned and scaled, k turned.

    `reach` is the greatest |i - j| that is seen, `sink` a logit that takes mass and gives nothing (GPT-OSS).
    """

    q_NR: Array
    k_NR: Array
    bias: LogitBias | None
    head: int
    causal: bool
    reach: int | None
    softcap: float | None = None
    sink: float | None = None

    @property
    def length(self) -> int:
        return len(self.q_NR)

    @property
    def offsets(self) -> tuple[int, int]:
        """The least and the greatest t = i - j that is seen."""
        far = self.length - 1 if self.reach is None else min(self.reach, self.length - 1)
        return (0 if self.causal else -far), far


@dataclass(frozen=True, eq=False)
class Grid:
    """Query rows `start`, `start + 1`, ... over keys `first`, `first + 1`, ...: i - j, and what is seen."""

    start: int
    first: int
    offsets_BM: NDArray[np.intp]
    visible_BM: Visible

    @property
    def queries_B(self) -> NDArray[np.intp]:
        return np.arange(self.start, self.start + self.offsets_BM.shape[0])

    @property
    def keys_M(self) -> NDArray[np.intp]:
        return np.arange(self.first, self.first + self.offsets_BM.shape[1])

    @cached_property
    def away_BM(self) -> Array:
        """|i - j|."""
        return np.abs(self.offsets_BM).astype(np.float64)


@lru_cache(maxsize=4)  # all heads of a model walk over the same few
def grid(start: int, stop: int, first: int, last: int, causal: bool, reach: int | None) -> Grid:
    """Queries from `start` to `stop`, keys from `first` to `last`."""
    offsets_BM = np.arange(start, stop)[:, None] - np.arange(first, last)
    visible_BM = offsets_BM >= 0 if causal else np.ones(offsets_BM.shape, dtype=bool)
    if reach is not None:
        visible_BM &= np.abs(offsets_BM) <= reach
    return Grid(start, first, offsets_BM, visible_BM)


@dataclass(frozen=True, eq=False)
class Rows:
    """The logits of a grid, before cap and mask."""

    grid: Grid
    logits_BM: Array


def head_logits(of: HeadContent) -> HeadLogits:
    """The head turned to its positions 0, 1, 2, ..."""
    at_N = np.arange(of.length, dtype=np.float64)
    q_NR, k_NR = turned(of.encoding.rotary, of.q_NR, of.k_NR, at_N, head=of.head, context=of.length)
    return HeadLogits(
        q_NR=q_NR * of.scale,
        k_NR=k_NR,
        bias=of.encoding.bias,
        head=of.head,
        causal=of.causal,
        reach=of.reach if of.reach is not None and of.reach < of.length - 1 else None,
        softcap=of.softcap,
        sink=of.sink,
    )


def block_rows(length: int) -> int:
    """How many rows are worked on at a time."""
    return int(np.clip(ENTRIES // length, 16, 512))


def last_block(length: int) -> int:
    """The first of the rows that `rows` gives last."""
    step = block_rows(length)
    return (length - 1) // step * step


def rows(head: HeadLogits, begin: int = 0, end: int | None = None) -> Iterator[Rows]:
    """All rows, or those from `begin` to `end`, block after block, each cut to the keys that its queries see."""
    length, step = head.length, block_rows(head.length)
    end = length if end is None else end
    entries_T = bias_by_offset(head)
    for start in range(begin, end, step):
        stop = min(start + step, end)
        first = 0 if head.reach is None else max(0, start - head.reach)
        last = stop if head.causal else length if head.reach is None else min(length, stop + head.reach)
        at = grid(start, stop, first, last, head.causal, head.reach)
        logits_BM = head.q_NR[start:stop] @ head.k_NR[first:last].T
        if entries_T is not None:
            logits_BM += entries_T[at.offsets_BM + length - 1]
        elif head.bias is not None:
            logits_BM += head.bias.table(np.arange(start, stop), np.arange(first, last))[head.head]
        yield Rows(at, logits_BM)


def bias_by_offset(head: HeadLogits) -> Array | None:
    """b(t) for t = -(n-1) .. n-1, where the bias depends on nothing else."""
    if head.bias is None or not head.bias.toeplitz:
        return None
    return np.asarray(head.bias.by_offset(np.arange(1 - head.length, head.length))[head.head])


def probabilities(head: HeadLogits, block: Rows) -> tuple[Array, Array]:
    """Attention of a block's rows (B, M), and the entropy of each row in nats."""
    logits_BM = block.logits_BM
    if head.softcap is not None:
        logits_BM = head.softcap * np.tanh(logits_BM / head.softcap)
    weights_BM = np.where(block.grid.visible_BM, logits_BM, -np.inf)
    top_B = weights_BM.max(axis=1)
    if head.sink is not None:
        top_B = np.maximum(top_B, head.sink)
    weights_BM -= top_B[:, None]
    np.exp(weights_BM, out=weights_BM)
    total_B = weights_BM.sum(axis=1)
    if head.sink is not None:
        total_B += np.exp(head.sink - top_B)
    weights_BM /= total_B[:, None]
    log_total_B = top_B + np.log(total_B)
    entropy_B = log_total_B * weights_BM.sum(axis=1) - np.einsum("bm,bm->b", weights_BM, logits_BM)
    return weights_BM, np.maximum(entropy_B, 0.0)


# -------------------------------------------------------------------- pictures
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
    means_T, share = diagonals(head)
    cell = -(-length // side)
    across = -(-length // cell)
    sums, fitted, counts = (np.zeros(across * across) for _ in range(3))
    for block in rows(head):
        seen = block.grid
        at_BM = (seen.queries_B // cell)[:, None] * across + seen.keys_M // cell
        at = at_BM[seen.visible_BM]
        values = (block.logits_BM[seen.visible_BM], means_T[seen.offsets_BM[seen.visible_BM] + length - 1])
        for total, each in zip((sums, fitted), values, strict=True):
            total += np.bincount(at, each, minlength=len(total))
        counts += np.bincount(at, minlength=len(counts))
    both = (_cells(total, counts, across) for total in (sums, fitted))
    return LogitPicture(layer, head.head, length, cell, share, *both)


def diagonals(head: HeadLogits) -> tuple[Array, float | None]:
    """The mean visible logit at t = -(n-1) .. n-1 (0 where none is seen), and these means' share of the square."""
    length, square = head.length, 0.0
    sums_T, counts_T = np.zeros(2 * length - 1), np.zeros(2 * length - 1)
    for block in rows(head):
        seen_BM = block.grid.visible_BM
        at = block.grid.offsets_BM[seen_BM] + length - 1
        logits = block.logits_BM[seen_BM]
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
