"""Exact singular values of logits from their factors, and the numbers read off a list of singular values.

Shape suffixes: N queries, M keys, R head width.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.core.linalg import thin_r

Array = NDArray[np.float64]

_LARGEST = 1e70  # fourth powers of it still fit


def finite(name: str, values: ArrayLike, *, axes: int) -> Array:
    """`values` as a float64 array with `axes` axes, none of them empty, all entries finite; or a BadValue."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != axes or 0 in array.shape:
        raise BadValue(f"{name} must be an array with {axes} axes, none of them empty; got the shape {array.shape}.")
    if not np.isfinite(array).all():
        raise BadValue(f"{name} holds NaN or infinity in {int((~np.isfinite(array)).sum())} of {array.size} entries.")
    if np.abs(array).max() > _LARGEST:
        raise BadValue(f"{name} holds values beyond {_LARGEST:g}, whose squares leave float64. Scale it down.")
    return array


def factors(q: ArrayLike, k: ArrayLike) -> tuple[Array, Array]:
    """Queries and keys as float64 matrices of one width, checked."""
    q_NR, k_MR = finite("q", q, axes=2), finite("k", k, axes=2)
    if q_NR.shape[1] != k_MR.shape[1]:
        raise BadValue(f"queries of width {q_NR.shape[1]} cannot meet keys of width {k_MR.shape[1]}.")
    return q_NR, k_MR


def product_singular_values(q: ArrayLike, k: ArrayLike) -> Array:
    """All singular values of Q K^T that can differ from zero, largest first, without forming Q K^T.

    With thin QR, Q = A R_Q and K = B R_K, the non-zero singular values of Q K^T are those of the small R_Q R_K^T:
    at most h of them, exact to rounding of the largest. A rotation is applied to Q and K beforehand; it changes
    nothing here, since the rotated logits are again a product of rank <= h (section 4). Cost O(n h^2).
    See `thin` for how R is found.
    """
    q_NR, k_MR = factors(q, k)
    return _descending(scipy.linalg.svdvals(thin_r(q_NR) @ thin_r(k_MR).T, check_finite=False))


def product_frobenius(q: ArrayLike, k: ArrayLike) -> float:
    """The Frobenius norm of Q K^T from two small Gram matrices: ||Q K^T||_F^2 = sum (Q^T Q) o (K^T K)."""
    q_NR, k_MR = factors(q, k)
    return float(np.sqrt(max(0.0, float(np.sum((q_NR.T @ q_NR) * (k_MR.T @ k_MR))))))


def effective_rank(values: ArrayLike) -> float | None:
    """How many singular values share the trace norm: exp H(s / sum s), between 1 and the rank; None for zero.

    H is the entropy in nats. It does not change with scale (metric 3.2). Of eigenvalues the sizes count.
    """
    share = _shares(values)
    if share is None:
        return None
    share = share[share > 0]
    return float(max(1.0, np.exp(-np.sum(share * np.log(share)))))


def stable_rank(values: ArrayLike) -> float | None:
    """||S||_F^2 / ||S||_2^2: how many times the largest singular value the energy holds; None for zero."""
    list_S = np.asarray(values, dtype=np.float64)
    top = list_S.max(initial=0.0)
    return None if top == 0 else float(np.sum((list_S / top) ** 2))


def numerical_rank(values: ArrayLike, size: int) -> int:
    """How many singular values exceed size * eps * the largest."""
    list_S = np.asarray(values, dtype=np.float64)
    return int(np.sum(list_S > size * np.finfo(np.float64).eps * list_S.max(initial=0.0)))


def majorisation_gap(values: ArrayLike, reference: ArrayLike) -> float | None:
    """How far the spectrum is from being weakly majorised by its reference (metric 3.4); None if that is zero.

    max_k [sum_{i<=k} s_i - sum_{i<=k} r_i] / sum r. At most 0 (to rounding): every Ky Fan norm contracts, as S3
    says of a product with a correlation matrix. Lists of different length are filled up with zeros.
    """
    ours, theirs = (_descending(np.asarray(part, dtype=np.float64)) for part in (values, reference))
    length = max(len(ours), len(theirs))
    gaps = np.cumsum(np.pad(ours, (0, length - len(ours)))) - np.cumsum(np.pad(theirs, (0, length - len(theirs))))
    total = float(theirs.sum())
    return None if total == 0 else float(gaps.max() / total)


def _shares(values: ArrayLike) -> Array | None:
    list_S = np.abs(np.asarray(values, dtype=np.float64))
    top = list_S.max(initial=0.0)
    if top == 0:
        return None
    scaled = list_S / top  # first by the largest, so that tiny or huge logits neither vanish nor overflow
    return np.asarray(scaled / scaled.sum())


def _descending(values: Array) -> Array:
    return np.asarray(np.sort(values)[::-1])
