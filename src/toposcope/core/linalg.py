"""The triangle R of a tall matrix's thin QR, by the cheapest way that keeps its digits.

Singular values of a tall B, and eigenvalues of B J B^T, are those of R and R J R^T. R comes from a Cholesky factor of
the Gram matrix where that provably keeps the digits, and from Householder QR otherwise. The error of a Cholesky
factor is a congruence near the identity, whatever the sizes of B's columns: if c is the condition of B with columns
of length one, every such value moves by a factor 1 + O(eps c^2), no more.

Shape suffixes: N rows, R columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

Array = NDArray[np.float64]

EXACT = 30.0  # condition in the 1-norm; its square times eps is 2e-13
WIDE = 512  # columns from which on a second look at the condition pays
POWERS = 16


def thin_r(tall_NR: Array, condition: float = EXACT) -> Array:
    """R of the thin QR, up to signs of its rows; `condition` (of unit columns): the worst that Cholesky may meet."""
    rows, width = tall_NR.shape
    if 2 * rows >= 3 * width and condition > 0:
        upper = cholesky_r(tall_NR.T @ tall_NR, condition)
        if upper is not None:
            return upper
    block = max(512, 4 * width)  # rows that fit the cache
    while rows > 2 * block:
        whole = rows // block * block
        pieces_R = [_householder(tall_NR[start : start + block]) for start in range(0, whole, block)]
        tall_NR = np.concatenate([*pieces_R, tall_NR[whole:]])
        rows = len(tall_NR)
    return _householder(tall_NR)


def cholesky_r(gram_RR: Array, condition: float = EXACT) -> Array | None:
    """R from the Gram matrix alone; None where unit columns would be worse conditioned than `condition`."""
    upper, failed = lapack.dpotrf(gram_RR, clean=1)
    if failed:
        return None
    unit = upper / np.linalg.norm(upper, axis=0)
    if lapack.dtrcon(unit)[0] * condition >= 1:
        return np.asarray(upper)
    # the 1-norm makes much of wide matrices: it grows with their width where the 2-norm does not
    wide = len(unit) >= WIDE and _condition(unit) * len(unit) ** 0.5 <= condition
    return np.asarray(upper) if wide else None


def _condition(triangle: Array) -> float:
    """In the 2-norm, by the power method from both ends: a few per cent short of it at most."""
    top = low = np.random.default_rng(0).standard_normal(len(triangle))
    for _ in range(POWERS):
        top = triangle.T @ (triangle @ (top / np.linalg.norm(top)))
        low = low / np.linalg.norm(low)
        low = lapack.dtrtrs(triangle, lapack.dtrtrs(triangle, low, trans=1)[0])[0].ravel()
    return float(np.sqrt(np.linalg.norm(top) * np.linalg.norm(low)))


def _householder(block_NR: Array) -> Array:
    reduced = lapack.dgeqrf(np.asfortranarray(block_NR))[0]
    return np.asarray(np.triu(reduced[: min(block_NR.shape)]))
