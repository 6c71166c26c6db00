"""The inner products between the rows of Q, K, V and the columns of O: formed once, asked for many times.

All that a scan says of a head follows from them: V O, Q O and K O, the triangles of [Q^T, K^T] and [O, V^T] that
have the eigenvalues of sym(Q^T K) and sym(O V), and the norms of all four. Heads that share keys and values share the
products between these.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Head
from toposcope.core.linalg import cholesky_r, thin_r
from toposcope.dynamics.factored import CONDITION, sym_eigs

Array = NDArray[np.float64]


class Products:
    """The products of one head; `shared` are those between its keys and values, where they are known."""

    def __init__(self, head: Head, shared: Array | None = None) -> None:
        self.head = head
        r = len(head.q)
        own, others = np.concatenate([head.q, head.o.T]), np.concatenate([head.k, head.v])
        self.shared = others @ others.T if shared is None else shared
        inside, across = own @ own.T, own @ others.T
        self.qq, self.qo, self.oo = inside[:r, :r], inside[:r, r:], inside[r:, r:]
        self.qk, self.ko, self.vo = across[:r, :r], across[r:, :r].T, across[r:, r:].T
        self.kk, self.vk, self.vv = self.shared[:r, :r], self.shared[r:, :r], self.shared[r:, r:]

    @cached_property
    def logits(self) -> Array:
        """The Gram matrix of [Q^T, K^T]."""
        return np.block([[self.qq, self.qk], [self.qk.T, self.kk]])

    @cached_property
    def logits_triangle(self) -> Array:
        """R of the thin QR of [Q^T, K^T]."""
        return _triangle(self.logits, self.head.q.T, self.head.k.T)

    @cached_property
    def values_triangle(self) -> Array:
        """R of the thin QR of [O, V^T]."""
        return _triangle(np.block([[self.oo, self.vo.T], [self.vo, self.vv]]), self.head.o, self.head.v.T)

    @cached_property
    def key_triangle(self) -> Array:
        """R of the thin QR of K^T."""
        return _triangle(self.kk, self.head.k.T)

    @cached_property
    def logits_eigenvalues(self) -> Array:
        """Those of sym(Q^T K) that can differ from zero, ascending, without the scale."""
        q, k = self.head.q, self.head.k
        return sym_eigs(q.T, k) if 2 * len(q) >= q.shape[1] else _swapped(self.logits_triangle)

    @cached_property
    def values_eigenvalues(self) -> Array:
        """Those of sym(O V) that can differ from zero, ascending."""
        o, v = self.head.o, self.head.v
        return sym_eigs(o, v) if 2 * len(v) >= len(o) else _swapped(self.values_triangle)

    def pair_index(self) -> float | None:
        """tr(U W^T) over its nuclear norm: see `heads.pair_index`."""
        r, s = len(self.head.q), len(self.head.v)
        trace = float(np.sum(self.qo * self.vk.T))
        sides = self.values_triangle[:s, :s], self.logits_triangle[:r, :r]
        nuclear = float(np.linalg.svd(sides[0] @ self.vk @ sides[1].T, compute_uv=False).sum())
        return trace / nuclear if nuclear > 0 else None


def _triangle(gram: Array, *parts: Array) -> Array:
    """R of the thin QR of the parts side by side, from their Gram matrix where that keeps the digits."""
    if len(parts[0]) >= 2 * len(gram):
        found = cholesky_r(gram, CONDITION)
        if found is not None:
            return found
    return thin_r(np.concatenate(parts, axis=1), condition=0.0)


def _swapped(upper: Array) -> Array:
    """The eigenvalues of 1/2 R J R^T, J the swap of the two halves of R's columns."""
    r = upper.shape[1] // 2
    half = upper[:, :r] @ upper[:, r:].T
    return np.asarray(np.linalg.eigvalsh((half + half.T) / 2))
