"""The logits of one head, a block of query rows at a time: no n x n matrix is ever held.

Shape suffixes: N tokens, R head width, B query rows of a block, M the keys that any of them sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import LogitBias
from toposcope.models.content import Content
from toposcope.spectra.contraction import turned

Array = NDArray[np.float64]
Visible = NDArray[np.bool_]
ENTRIES = 1_000_000  # logits of a block: 8 MB


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
class Rows:
    """Logits of query rows `start`, `start + 1`, ... over keys `first`, `first + 1`, ...; before cap and mask."""

    start: int
    first: int
    logits_BM: Array
    visible_BM: Visible

    @property
    def queries_B(self) -> NDArray[np.intp]:
        return np.arange(self.start, self.start + len(self.logits_BM))

    @property
    def keys_M(self) -> NDArray[np.intp]:
        return np.arange(self.first, self.first + self.logits_BM.shape[1])

    @property
    def offsets_BM(self) -> NDArray[np.intp]:
        return np.asarray(self.queries_B[:, None] - self.keys_M)


def head_logits(content: Content, head: int, sink: float | None = None) -> HeadLogits:
    """One head of one sequence, turned to its positions 0, 1, 2, ..."""
    spec, length = content.layer.spec, content.q_HNR.shape[1]
    at_N = np.arange(length, dtype=np.float64)
    q_NR, k_NR = turned(
        content.encoding.rotary, content.q_HNR[head], content.k_HMR[head], at_N, head=head, context=length
    )
    return HeadLogits(
        q_NR=q_NR * content.scale,
        k_NR=k_NR,
        bias=content.encoding.bias,
        head=head,
        causal=spec.causal,
        reach=spec.reach if spec.reach is not None and spec.reach < length - 1 else None,
        softcap=spec.softcap,
        sink=sink,
    )


def block_rows(length: int) -> int:
    """How many rows are worked on at a time."""
    return int(np.clip(ENTRIES // length, 16, 512))


def rows(head: HeadLogits) -> Iterator[Rows]:
    """All rows, block after block, each cut to the keys that some of its queries see."""
    length, step = head.length, block_rows(head.length)
    entries_T = bias_by_offset(head)
    for start in range(0, length, step):
        stop = min(start + step, length)
        first = 0 if head.reach is None else max(0, start - head.reach)
        last = stop if head.causal else length if head.reach is None else min(length, stop + head.reach)
        offset_BM = np.arange(start, stop)[:, None] - np.arange(first, last)
        logits_BM = head.q_NR[start:stop] @ head.k_NR[first:last].T
        if entries_T is not None:
            logits_BM += entries_T[offset_BM + length - 1]
        elif head.bias is not None:
            logits_BM += head.bias.table(np.arange(start, stop), np.arange(first, last))[head.head]
        visible_BM = offset_BM >= 0 if head.causal else np.ones(offset_BM.shape, dtype=bool)
        if head.reach is not None:
            visible_BM &= np.abs(offset_BM) <= head.reach
        yield Rows(start, first, logits_BM, visible_BM)


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
    weights_BM = np.where(block.visible_BM, logits_BM, -np.inf)
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
