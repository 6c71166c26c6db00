"""Logit and attention matrices as operators: their products with vectors, and their largest singular values.

No n x n matrix is formed; the post-softmax operator holds one band of rows at a time. All products take a block of
vectors (M, B) or one vector (M,). Shape suffixes: N queries, M keys, R head width, B vectors.

Toeplitz entries are given as one list over the offsets t = i - j from -(M-1) to N-1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.spectra.singular import factors, finite

Array = NDArray[np.float64]
Floats = NDArray[Any]  # of single or double precision
Product = Callable[[Array], Array]

_SINGLE = 1e4  # logits below this keep three digits of their exponentials in single precision
_ROUGH = 1e-4  # how far a search goes with a rough form, whose noise is at 1e-6 of the top
_CHUNK = 64  # rows per block of the running sums: about the head width balances both halves of the work


@dataclass(frozen=True, eq=False)
class Operator:
    """A matrix known by its products: A x, A^T y and, where one pass gives both, (A x, A^T A x).

    `rough` is nearly the same matrix, several times cheaper: a search may begin with it, and must not end there.
    """

    shape: tuple[int, int]
    times: Product
    times_transposed: Product
    both: Callable[[Array], tuple[Array, Array]] | None = None
    rough: Operator | None = None

    def with_gram(self, x: Array) -> tuple[Array, Array]:
        """A x and A^T A x."""
        if self.both is not None:
            return self.both(x)
        y = self.times(x)
        return y, self.times_transposed(y)

    def linear_operator(self) -> scipy.sparse.linalg.LinearOperator:
        """The same for SciPy's solvers."""
        return scipy.sparse.linalg.LinearOperator(
            self.shape,
            matvec=self.times,
            rmatvec=self.times_transposed,
            matmat=self.times,
            rmatmat=self.times_transposed,
            dtype=np.float64,
        )

    def __add__(self, other: Operator) -> Operator:
        if self.shape != other.shape:
            raise BadValue(f"matrices of shapes {self.shape} and {other.shape} cannot be added.")
        return Operator(
            self.shape,
            lambda x: self.times(x) + other.times(x),
            lambda y: self.times_transposed(y) + other.times_transposed(y),
        )


def product(q: ArrayLike, k: ArrayLike) -> Operator:
    """Q K^T as an operator, O(n h) a product."""
    q_NR, k_MR = factors(q, k)
    return Operator((len(q_NR), len(k_MR)), lambda x: q_NR @ (k_MR.T @ x), lambda y: k_MR @ (q_NR.T @ y))


def toeplitz(entries: ArrayLike, rows: int, columns: int, *, causal: bool = False) -> Operator:
    """The Toeplitz matrix T[i, j] = b(i - j) by circulant embedding, O(n log n) a product.

    `entries` lists b over t = -(columns-1) .. rows-1; `causal` cuts it to i >= j, which is Toeplitz again.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    b_T = finite("the Toeplitz entries", entries, axes=1)
    if len(b_T) != rows + columns - 1:
        raise BadValue(f"a {rows} x {columns} Toeplitz matrix has {rows + columns - 1} entries, got {len(b_T)}.")
    if causal:
        b_T = np.where(np.arange(-(columns - 1), rows) >= 0, b_T, 0.0)
    size = next_fast_len(rows + columns - 1, real=True)
    circle = np.zeros(size)
    circle[:rows] = b_T[columns - 1 :]
    if columns > 1:
        circle[-(columns - 1) :] = b_T[: columns - 1]
    wave = rfft(circle)

    def apply(x: Array, spectrum: NDArray[np.complex128], length: int) -> Array:
        spread = spectrum if x.ndim == 1 else spectrum[:, None]
        return np.asarray(irfft(rfft(x, size, axis=0) * spread, size, axis=0)[:length])

    return Operator(
        (rows, columns), lambda x: apply(x, wave, rows), lambda y: apply(y, np.asarray(wave.conj()), columns)
    )


def biased(q: ArrayLike, k: ArrayLike, entries: ArrayLike) -> Operator:
    """Q K^T + B with a Toeplitz bias b(i - j): low rank plus Toeplitz, O(n h + n log n) a product."""
    content = product(q, k)
    return content + toeplitz(entries, *content.shape)


def causal_product(q: ArrayLike, k: ArrayLike) -> Operator:
    """tril(Q K^T) as an operator: running sums of k_j x_j, block by block, O(n h) a product.

    y_i = q_i . sum_{j <= i} k_j x_j. Whole blocks before i enter through their sum, the block of i itself through
    its own small triangle, formed once.
    """
    q_NR, k_MR = factors(q, k)
    if len(q_NR) != len(k_MR):
        raise BadValue(f"a causal mask needs as many keys as queries, got {len(k_MR)} and {len(q_NR)}.")
    rows, width = q_NR.shape
    blocks = -(-rows // _CHUNK)
    fill = ((0, blocks * _CHUNK - rows), (0, 0))
    q_CSR = np.pad(q_NR, fill).reshape(blocks, _CHUNK, width)
    k_CSR = np.pad(k_MR, fill).reshape(blocks, _CHUNK, width)
    own_CSS = np.tril(q_CSR @ k_CSR.transpose(0, 2, 1))

    def before(sums_CRB: Array) -> Array:
        """For each block, the sum over the blocks before it."""
        earlier = np.zeros_like(sums_CRB)
        np.cumsum(sums_CRB[:-1], axis=0, out=earlier[1:])
        return earlier

    def blocked(x: Array) -> Array:
        return np.pad(x.reshape(rows, -1), fill).reshape(blocks, _CHUNK, -1)

    def times(x: Array) -> Array:
        x_CSB = blocked(x)
        y_CSB = q_CSR @ before(k_CSR.transpose(0, 2, 1) @ x_CSB) + own_CSS @ x_CSB
        return y_CSB.reshape(blocks * _CHUNK, -1)[:rows].reshape(x.shape)

    def times_transposed(y: Array) -> Array:
        y_CSB = blocked(y)
        after = before((q_CSR.transpose(0, 2, 1) @ y_CSB)[::-1])[::-1]
        x_CSB = k_CSR @ after + own_CSS.transpose(0, 2, 1) @ y_CSB
        return x_CSB.reshape(blocks * _CHUNK, -1)[:rows].reshape(y.shape)

    return Operator((rows, rows), times, times_transposed)


def causal_biased(q: ArrayLike, k: ArrayLike, entries: ArrayLike) -> Operator:
    """tril(Q K^T + B) with a Toeplitz bias: the mask of a Toeplitz matrix is Toeplitz (S6)."""
    content = causal_product(q, k)
    return content + toeplitz(entries, *content.shape, causal=True)


def hadamard_toeplitz(left: ArrayLike, right: ArrayLike, entries: ArrayLike) -> Operator:
    """(C o G) with C = U V^T of rank r and G Toeplitz: sum_r u_r o G(v_r o x), O(r n log n) a product."""
    u_NR, v_MR = factors(left, right)
    kernel = toeplitz(entries, len(u_NR), len(v_MR))

    def apply(outer: Array, inner: Array, inside: Product, x: Array) -> Array:
        x_MB = x.reshape(len(x), -1)
        spread = (inner[:, :, None] * x_MB[:, None, :]).reshape(len(inner), -1)
        y_NRB = inside(spread).reshape(len(outer), outer.shape[1], -1)
        return np.asarray(np.einsum("nr,nrb->nb", outer, y_NRB).reshape(len(outer), *x.shape[1:]))

    return Operator(
        kernel.shape,
        lambda x: apply(u_NR, v_MR, kernel.times, x),
        lambda y: apply(v_MR, u_NR, kernel.times_transposed, y),
    )


def softmax_operator(
    q: ArrayLike, k: ArrayLike, entries: ArrayLike | None = None, *, causal: bool = False, band: int = 64
) -> Operator:
    """The attention matrix softmax(Q K^T + B) as an operator; `band` rows of it exist at a time.

    Rows sum to one. A causal mask leaves row i the columns j <= i. One pass gives both P x and P^T P x, since
    P^T P is the sum over bands of P_c^T P_c. O(n^2 h) a product, memory O(band * n). In single precision, where
    exponentials cost a tenth, it is its own rough form.
    """
    q_NR, k_MR = factors(q, k)
    rows, columns = len(q_NR), len(k_MR)
    if causal and rows != columns:
        raise BadValue(f"a causal mask needs as many keys as queries, got {columns} and {rows}.")
    b_T = None if entries is None else finite("the Toeplitz entries", entries, axes=1)
    if b_T is not None and len(b_T) != rows + columns - 1:
        raise BadValue(f"a {rows} x {columns} Toeplitz matrix has {rows + columns - 1} entries, got {len(b_T)}.")
    starts = range(0, rows, band)

    def logits(queries: Floats, keys: Floats, bias_T: Floats | None, start: int) -> Floats:
        """The band of rows from `start` on, cut to the columns any of them sees."""
        stop = min(start + band, rows)
        seen = stop if causal else columns
        band_NM = queries[start:stop] @ keys[:seen].T
        if bias_T is not None:  # row i of T is b over t = i, i-1, ...: a window of the reversed list
            windows = np.lib.stride_tricks.sliding_window_view(bias_T[::-1], columns)
            band_NM += windows[rows - 1 - np.arange(start, stop), :seen]
        if causal:
            corner = band_NM[:, start:]
            corner[np.triu_indices(len(corner), 1)] = -np.inf
        return band_NM

    # the logarithm of each row's sum becomes one more channel: a later pass is one product and one exponential
    sums_N = np.concatenate([_log_sums(logits(q_NR, k_MR, b_T, start)) for start in starts])
    q_more, k_more = np.column_stack([q_NR, -sums_N]), np.column_stack([k_MR, np.ones(columns)])

    def operator(kind: type[np.float64] | type[np.float32]) -> Operator:
        queries, keys = q_more.astype(kind), k_more.astype(kind)
        bias_T = None if b_T is None else b_T.astype(kind)

        def probabilities(start: int) -> Floats:
            weights = logits(queries, keys, bias_T, start)
            return np.exp(weights, out=weights)

        def times(x: Array) -> Array:
            given, parts = x.astype(kind), []
            for start in starts:
                weights = probabilities(start)
                parts.append(weights @ given[: weights.shape[1]])
            return np.concatenate(parts).astype(np.float64)

        def times_transposed(y: Array) -> Array:
            given, x = y.astype(kind), np.zeros((columns, *y.shape[1:]))
            for start in starts:
                weights = probabilities(start)
                x[: weights.shape[1]] += weights.T @ given[start : start + band]
            return x

        def both(x: Array) -> tuple[Array, Array]:
            given, parts, gram = x.astype(kind), [], np.zeros_like(x)
            for start in starts:
                weights = probabilities(start)
                parts.append(weights @ given[: weights.shape[1]])
                gram[: weights.shape[1]] += weights.T @ parts[-1]
            return np.concatenate(parts).astype(np.float64), gram

        return Operator((rows, columns), times, times_transposed, both)

    largest = np.linalg.norm(q_more, axis=1).max() * np.linalg.norm(k_more, axis=1).max()
    largest += 0.0 if b_T is None else np.abs(b_T).max()
    return replace(operator(np.float64), rough=operator(np.float32) if largest < _SINGLE else None)


@dataclass(frozen=True, eq=False)
class TopValues:
    """The largest singular values with what is known of their error.

    `residuals[i]` is ||A^T u - s v|| for the found triplet, from products with A itself: a singular value lies
    within it of `values[i]`; near a well separated one the error is of the order of its square. `converged` says
    whether all residuals are below the tolerance times the largest value. `passes` counts products with A^T A,
    `rough_passes` those with the rough form before them.
    """

    values: Array
    residuals: Array
    passes: int
    converged: bool
    rough_passes: int = 0

    def __str__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        pairs = ", ".join(f"{s:.6g} (residual {r:.1e})" for s, r in zip(self.values, self.residuals, strict=True))
        return f"{pairs}; {state} after {self.passes} passes"


def top_singular_values(
    operator: Operator,
    count: int = 4,
    *,
    tolerance: float = 1e-8,
    max_passes: int = 300,
    block: int = 1,
    seed: int = 0,
) -> TopValues:
    """The `count` largest singular values by Lanczos with full reorthogonalisation, with residuals and a cap.

    A block Krylov space V of A^T A is built, `block` vectors a pass; its Ritz values are the squares. The result is
    read from A V itself, so that no digits are lost to squaring. Smooth summable Toeplitz kernels converge slowly
    (their top eigenvalues cluster like 1/n^2): the cap ends the search and the residual tells (section 4). A value
    that occurs more than `block` times may be listed fewer times than it occurs; the largest is never affected.
    """
    rows, columns = operator.shape
    count = min(count, rows, columns)
    if count < 1 or block < 1 or max_passes < 1:
        raise BadValue("count, block and max_passes must be at least 1.")
    random = np.random.default_rng(seed)
    begin, rough_passes = random.standard_normal((columns, min(block, columns))), 0
    if operator.rough is not None:
        found = _search(operator.rough, begin, count, max(tolerance, _ROUGH), max_passes, random)
        rough_passes, more = found.passes, min(max(block, count), found.basis.shape[1])
        begin = found.basis @ found.weights[:, :more]
    found = _search(operator, begin, count, tolerance, max_passes, random)
    right = found.basis @ found.weights[:, :count]
    if found.products:
        left, images = (np.hstack(parts) @ found.weights[:, :count] for parts in zip(*found.products, strict=True))
    else:
        left, images = operator.with_gram(right)
    values = np.linalg.norm(left, axis=0)
    top = float(values.max(initial=0.0))
    safe = np.where(values > 0, values, 1.0)
    residuals = np.where(values > 0, np.linalg.norm(images / safe - right * values, axis=0), 0.0)
    residuals = np.minimum(residuals, values)  # ||A v|| = s bounds the smallest singular value: one is within s of s
    order = np.argsort(-values)
    converged = len(values) == count and bool((residuals <= tolerance * top).all())
    return TopValues(values[order], residuals[order], found.passes, converged, rough_passes)


@dataclass(frozen=True, eq=False)
class _Space:
    """A Krylov space of A^T A: its orthonormal basis, Ritz vectors in it (largest first), and products with A."""

    basis: Array
    weights: Array
    passes: int
    products: list[tuple[Array, Array]]  # kept where a pass costs more than the memory they take


def _search(
    operator: Operator, begin: Array, count: int, tolerance: float, max_passes: int, random: np.random.Generator
) -> _Space:
    """Grow the space from the block `begin` until `count` Ritz values have converged, or for `max_passes`."""
    columns, block = begin.shape
    held = np.empty((columns, 32), order="F")  # the basis fills its first columns; it doubles when full
    basis = held[:, :0]
    ritz = np.empty((0, 0))
    fresh = _orthonormal(begin, basis)[0]
    passes, weights = 0, np.empty((0, 0))
    products: list[tuple[Array, Array]] = []
    while passes < max_passes and fresh.shape[1]:
        left, image = operator.with_gram(fresh)
        passes += 1
        if operator.both is not None:
            products.append((left, image))
        used = basis.shape[1]
        while used + fresh.shape[1] > held.shape[1]:
            held = np.asfortranarray(np.hstack([held, np.empty_like(held)]))
        held[:, used : used + fresh.shape[1]] = fresh
        basis = held[:, : used + fresh.shape[1]]
        overlap = basis.T @ image
        grown = np.zeros((basis.shape[1],) * 2)
        grown[:used, :used] = ritz
        grown[:, used:] = overlap
        grown[used:, :] = overlap.T
        ritz = grown
        squares, weights = scipy.linalg.eigh(ritz, check_finite=False)
        squares, weights = squares[::-1], weights[:, ::-1]
        width = fresh.shape[1]
        fresh, link = _orthonormal(image - basis @ overlap, basis)
        top = np.sqrt(max(squares[0], 0.0))
        if basis.shape[1] >= count:
            sizes = np.sqrt(np.maximum(squares[:count], 0.0))
            rest = np.linalg.norm(link @ weights[-width:, :count], axis=0)
            # rest = s * residual; a value at rounding level has no residual of its own to wait for
            if (rest <= 0.5 * tolerance * top * np.maximum(sizes, 1e-6 * top)).all():
                break
        if not fresh.shape[1] and basis.shape[1] < min(count, columns):  # an invariant subspace: start afresh
            fresh = _orthonormal(random.standard_normal((columns, block)), basis)[0]
    return _Space(basis, weights, passes, products)


def _log_sums(logits_NM: Array) -> Array:
    """The logarithm of the sum of exponentials of each row, in place."""
    top_N = logits_NM.max(axis=1)
    logits_NM -= top_N[:, None]
    return np.asarray(top_N + np.log(np.exp(logits_NM, out=logits_NM).sum(axis=1)))


def _orthonormal(block: Array, basis: Array) -> tuple[Array, Array]:
    """An orthonormal basis of `block` off `basis` (twice is enough), and its coefficients; dependent columns go."""
    size = np.linalg.norm(block)
    for _ in range(2):
        block = block - basis @ (basis.T @ block)
    vectors, coefficients, pivots = scipy.linalg.qr(block, mode="economic", pivoting=True, check_finite=False)
    keep = np.abs(np.diag(coefficients)) > 1e-14 * max(float(size), np.finfo(np.float64).tiny)
    number = int(np.sum(np.cumprod(keep)))
    unpivoted = np.empty_like(coefficients)
    unpivoted[:, pivots] = coefficients
    vectors = vectors[:, :number]
    vectors = vectors - basis @ (basis.T @ vectors)
    sizes = np.linalg.norm(vectors, axis=0)
    return vectors / np.where(sizes > 0, sizes, 1.0), unpivoted[:number]
