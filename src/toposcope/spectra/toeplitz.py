"""Toeplitz matrices without the matrices: diagonal means, share, products, norms, bounds, the symbol.

A Toeplitz matrix T[i, j] = g(i - j) of size n is given by its `lags`, the 2n - 1 numbers g(-(n-1)), ..., g(n-1).
Everything here works on lags, or on the factors of Q K^T, by FFT. Functions that do build an n x n matrix say so in
their name (`toeplitz_matrix`, `toeplitz_projection`, `dense_singular_values`): they are the references.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.spectra.singular import effective_rank

Array = NDArray[np.float64]
DENSE_LIMIT = 2048  # the largest matrix that is built
_EPS = float(np.finfo(np.float64).eps)
_CHANNELS_AT_ONCE = 8
_ROWS_AT_ONCE = 256


# ------------------------------------------------------------------ numbers read off a spectrum
@dataclass(frozen=True, eq=False)
class Spectrum:
    """The non-zero eigenvalues or singular values of an n x n matrix, and what is read off them.

    `values` may hold zeros and may leave out any number of them; signs count for nothing but `negative`.
    """

    values: Array
    context: int

    @property
    def sizes(self) -> Array:
        """Absolute values, descending."""
        return np.sort(np.abs(self.values))[::-1]

    @property
    def top(self) -> float:
        """The spectral norm."""
        return float(np.abs(self.values).max()) if self.values.size else 0.0

    @property
    def lambda_max_over_n(self) -> float:
        """The spectral norm over n: 1 for the constant kernel, rho_n of S5d for a unit-diagonal one."""
        return self.top / self.context

    @property
    def tolerance(self) -> float:
        """n eps: values below this times the top are not told from 0."""
        return self.context * _EPS

    @property
    def rank(self) -> int:
        """The numerical rank: how many values exceed the tolerance times the top. It may be below the true one."""
        return int((np.abs(self.values) > self.tolerance * self.top).sum())

    @property
    def effective_rank(self) -> float | None:
        """exp H(s / sum s), H the entropy: 1 for rank one, n for the identity; None for the zero matrix."""
        return effective_rank(self.values)

    @property
    def condition(self) -> float | None:
        """Largest over smallest value above the tolerance (see `rank`); None for the zero matrix."""
        return float(self.top / self.sizes[self.rank - 1]) if self.rank else None

    @property
    def negative(self) -> int:
        """How many values lie below -n eps times the top."""
        return int((self.values < -self.context * _EPS * self.top).sum())


# ------------------------------------------------------------------ the Toeplitz part of Q K^T
def diagonal_means(q: ArrayLike, k: ArrayLike, causal: bool = False) -> Array:
    """The mean of every diagonal of Q K^T, by FFT: m_t = mean over i - j = t of q_i . k_j, t = -(n-1) .. n-1.

    The sums are cross-correlations, added over channels: O(h n log n) time, no n x n matrix. With `causal` only
    t = 0 .. n-1 are returned (a query sees keys that are not later than it).
    """
    q_NH, k_NH = _factors(q, k)
    n = len(q_NH)
    size = fast_length(2 * n - 1)
    total = np.zeros(size // 2 + 1, dtype=np.complex128)
    for first in range(0, q_NH.shape[1], _CHANNELS_AT_ONCE):
        block = slice(first, first + _CHANNELS_AT_ONCE)
        left = np.fft.rfft(np.ascontiguousarray(q_NH[:, block].T), size)
        right = np.fft.rfft(np.ascontiguousarray(k_NH[:, block].T), size)
        total += (left * right.conj()).sum(axis=0)
    sums = np.fft.irfft(total, size)
    offset = np.arange(0 if causal else 1 - n, n)
    return sums[offset] / (n - np.abs(offset))


def toeplitz_share(q: ArrayLike, k: ArrayLike, *, causal: bool = False, centred: bool = False) -> float | None:
    """How much of the logits Q K^T depends on i - j alone (3.5): sum_t (n - |t|) m_t^2 / ||Q K^T||_F^2.

    1 exactly for a Toeplitz matrix, about (2n-1)/n^2 for independent entries (causal: 2/(n+1)). `causal` sums over
    the visible entries i >= j on both sides. `centred` first removes the mean of all (visible) entries. None where
    the denominator is zero up to rounding: zero logits, or constant ones after their mean is removed.
    """
    q_NH, k_NH = _factors(q, k)
    scale = float((q_NH**2).sum() * (k_NH**2).sum())
    if centred:
        q_NH, k_NH = _without_mean(q_NH, k_NH, causal)
    n = len(q_NH)
    norm = _squared_norm(q_NH, k_NH, causal)
    if not norm > (64 * _EPS) ** 2 * scale:
        return None
    means = diagonal_means(q_NH, k_NH, causal)
    weight = n - np.abs(np.arange(0 if causal else 1 - n, n))
    return float(min((weight * means**2).sum() / norm, 1.0))


def toeplitz_projection(matrix: ArrayLike, *, causal: bool = False) -> Array:
    """The Toeplitz matrix nearest to a dense one: every diagonal replaced by its mean (causal: zero above it).

    The orthogonal projection in the Frobenius norm. Dense; the reference for `diagonal_means`.
    """
    dense = np.asarray(matrix, dtype=np.float64)
    if dense.ndim != 2 or dense.shape[0] != dense.shape[1]:
        raise BadValue(f"a Toeplitz projection needs a square matrix, got the shape {dense.shape}.")
    n = len(dense)
    lags = np.array([np.diagonal(dense, -t).mean() if t >= 0 or not causal else 0.0 for t in range(1 - n, n)])
    return toeplitz_matrix(lags)


def _factors(q: ArrayLike, k: ArrayLike) -> tuple[Array, Array]:
    q_NH, k_NH = np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64)
    if q_NH.ndim != 2 or q_NH.shape != k_NH.shape or not q_NH.size:
        raise BadValue(f"queries and keys must have one shape (positions, channels), got {q_NH.shape}, {k_NH.shape}.")
    if not (np.isfinite(q_NH).all() and np.isfinite(k_NH).all()):
        raise BadValue("queries or keys hold NaN or infinity; their logits have no spectrum.")
    return q_NH, k_NH


def _without_mean(q_NH: Array, k_NH: Array, causal: bool) -> tuple[Array, Array]:
    """Factors of Q K^T minus the mean of its (visible) entries, with one channel more.

    With q = q' + mean and k = k' + mean, S - mean(q).mean(k) = Q' K^T + 1 (K' mean(q))^T: nothing large cancels.
    """
    mean_q, mean_k = q_NH.mean(axis=0), k_NH.mean(axis=0)
    left = np.column_stack([q_NH - mean_q, np.ones(len(q_NH))])
    right = np.column_stack([k_NH, (k_NH - mean_k) @ mean_q])
    if causal:
        weight = len(q_NH) - np.arange(len(q_NH))
        right[:, -1] -= (diagonal_means(left, right, True) * weight).sum() / weight.sum()
    return left, right


def _squared_norm(q_NH: Array, k_NH: Array, causal: bool) -> float:
    """||Q K^T||_F^2 = sum (Q^T Q) o (K^T K); causal: over i >= j, with a running sum of k_j k_j^T."""
    if not causal:
        return float(((q_NH.T @ q_NH) * (k_NH.T @ k_NH)).sum())
    total, before = 0.0, np.zeros((k_NH.shape[1], k_NH.shape[1]))
    for first in range(0, len(q_NH), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        total += float(((q_NH[rows] @ before) * q_NH[rows]).sum())
        total += float((np.tril(q_NH[rows] @ k_NH[rows].T) ** 2).sum())
        before += k_NH[rows].T @ k_NH[rows]
    return total


# ------------------------------------------------------------------ a Toeplitz matrix from its lags
def toeplitz_matrix(lags: ArrayLike) -> Array:
    """The dense matrix T[i, j] = g(i - j); refused beyond 8 times the dense limit, with its size."""
    lags_T = _checked_lags(lags)
    n = (len(lags_T) + 1) // 2
    if n > 8 * DENSE_LIMIT:
        raise BadValue(f"a dense matrix of {n} x {n} takes {n * n * 8 / 1e9:,.0f} GB; use the structured routes.")
    at = np.arange(n)
    return lags_T[at[:, None] - at + n - 1]


class ToeplitzOperator:
    """Products with T[i, j] = g(i - j) by circulant embedding: O(n log n) each, the transform of g taken once."""

    def __init__(self, lags: ArrayLike) -> None:
        lags_T = _checked_lags(lags)
        self.n = (len(lags_T) + 1) // 2
        self._size = fast_length(2 * self.n - 1)
        self._transform = np.fft.rfft(_embedded(lags_T, self._size))

    def matvec(self, x: ArrayLike) -> Array:
        """T x, for a vector or for the columns of a matrix."""
        return self._product(x, self._transform)

    def rmatvec(self, x: ArrayLike) -> Array:
        """T^T x."""
        return self._product(x, self._transform.conj())

    def _product(self, x: ArrayLike, transform: NDArray[np.complex128]) -> Array:
        given = np.asarray(x, dtype=np.float64)
        if given.shape[:1] != (self.n,):
            raise BadValue(f"a product with a matrix of size {self.n} needs {self.n} rows, got {given.shape}.")
        across = transform.reshape(-1, *[1] * (given.ndim - 1))
        return np.fft.irfft(np.fft.rfft(given, self._size, axis=0) * across, self._size, axis=0)[: self.n]


def dense_singular_values(lags: ArrayLike) -> Array:
    """All singular values of T, descending, by a dense route; with symmetric lags the signed eigenvalues instead.

    Reversing the rows makes any Toeplitz matrix symmetric, so its singular values are the absolute eigenvalues of
    that; a symmetric one splits further into its even and odd halves, each of size n/2. Refused beyond 2048.
    """
    lags_T = _checked_lags(lags)
    n = (len(lags_T) + 1) // 2
    if n > DENSE_LIMIT:
        raise BadValue(f"a dense spectrum of {n} x {n} is refused (limit {DENSE_LIMIT}); use the structured routes.")
    dense = toeplitz_matrix(lags_T)
    if not np.array_equal(lags_T, lags_T[::-1]):
        return np.sort(np.abs(np.linalg.eigvalsh(dense[::-1])))[::-1]
    half, middle = n // 2, n % 2
    corner, across = dense[:half, :half], dense[:half, n - half :][:, ::-1]
    even = corner + across
    if middle:
        column = math.sqrt(2) * dense[:half, half]
        even = np.block([[even, column[:, None]], [column[None, :], dense[half : half + 1, half : half + 1]]])
    parts = [np.linalg.eigvalsh(block) for block in (even, corner - across) if block.size]
    return np.sort(np.concatenate(parts))[::-1]


def optimal_circulant(lags: ArrayLike) -> NDArray[np.complex128]:
    """The diagonal of F^* T F, F the Fourier matrix: the eigenvalues of the circulant nearest to T (T. Chan).

    They are averages over T: for symmetric T they are majorised by its eigenvalues (Schur-Horn), so their largest
    is at most lambda_max, and where T is positive their effective rank is at least that of T. For any T the largest
    modulus is at most the spectral norm.
    """
    lags_T = _checked_lags(lags)
    n = (len(lags_T) + 1) // 2
    at = np.arange(n)
    mixed = (n - at) / n * lags_T[n - 1 :]
    mixed[1:] += at[1:] / n * lags_T[: n - 1]
    return np.fft.fft(mixed)


def norm_bounds(lags: ArrayLike) -> tuple[float, float]:
    """Numbers between which the spectral norm of T lies, whatever its size: two FFTs, both sides theorems.

    Below: the optimal circulant, and the Rayleigh quotient of the constant vector that it contains. Above: T is a
    block of a circulant of twice its size, whose norm is the largest modulus of its transform.
    """
    lags_T = _checked_lags(lags)
    n = (len(lags_T) + 1) // 2
    below = float(np.abs(optimal_circulant(lags_T)).max())
    above = float(np.abs(np.fft.rfft(_embedded(lags_T, fast_length(2 * n - 1)))).max())
    return below, max(below, above)


@dataclass(frozen=True)
class TopValue:
    """The largest singular value as Lanczos found it; a true one lies within `residual` (relative) of it."""

    value: float
    residual: float
    products: int
    converged: bool


def top_singular_value(lags: ArrayLike, *, tolerance: float = 1e-8, restarts: int = 12, seed: int = 0) -> TopValue:
    """The spectral norm of T by Lanczos on the row-reversed (hence symmetric) matrix, with its residual.

    The residual ||A v - lambda v|| / |lambda| is computed afterwards from v, whether or not the iteration converged:
    on smooth summable kernels the top values cluster like 1/n^2 (section 4), so it may stop early, and then says so.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator = ToeplitzOperator(lags)
    n, products = operator.n, 0
    if not np.any(lags):  # Lanczos cannot begin in it
        return TopValue(0.0, 0.0, 0, True)

    def reversed_product(x: Array) -> Array:
        nonlocal products
        products += 1
        return operator.matvec(np.ravel(x))[::-1]

    if n < 3:
        sizes = np.abs(dense_singular_values(lags))
        return TopValue(float(sizes.max()), 0.0, 0, True)
    start = np.random.default_rng(seed).standard_normal(n)
    converged = True
    try:
        _, vectors = eigsh(
            LinearOperator((n, n), matvec=reversed_product, dtype=np.float64),
            k=1,
            which="LM",
            v0=start,
            ncv=min(n, 32),
            tol=tolerance,
            maxiter=restarts,
        )
        vector = vectors[:, 0]
    except ArpackNoConvergence:
        converged, vector = False, _power_vector(reversed_product, start)
    vector = vector / np.linalg.norm(vector)
    image = reversed_product(vector)
    value = float(vector @ image)
    return TopValue(abs(value), float(np.linalg.norm(image - value * vector) / abs(value)), products, converged)


def _power_vector(product: object, start: Array) -> Array:
    """A Ritz vector from one Lanczos run of 60 steps with full reorthogonalisation, where ARPACK gave none."""
    assert callable(product)
    basis = [start / np.linalg.norm(start)]
    alpha: list[float] = []
    beta: list[float] = []
    for _ in range(min(60, len(start))):
        image = product(basis[-1])
        alpha.append(float(basis[-1] @ image))
        block = np.array(basis)
        image = image - block.T @ (block @ image)
        image = image - block.T @ (block @ image)
        size = float(np.linalg.norm(image))
        if size <= _EPS * max(map(abs, alpha)):
            break
        beta.append(size)
        basis.append(image / size)
    steps = len(alpha)
    small = np.diag(alpha) + np.diag(beta[: steps - 1], 1) + np.diag(beta[: steps - 1], -1)
    values, vectors = np.linalg.eigh(small)
    return np.asarray(np.array(basis[:steps]).T @ vectors[:, np.abs(values).argmax()])


# ------------------------------------------------------------------ the symbol
@dataclass(frozen=True)
class SymbolRange:
    """The least and largest value of a real symbol on a grid, and bounds that hold for all angles between."""

    least: float
    largest: float
    least_bound: float
    largest_bound: float


def symbol(lags: ArrayLike, points: int) -> NDArray[np.complex128]:
    """The symbol g~(theta) = sum_t g(t) e^{i t theta} at theta = 2 pi k / points, k = 0 .. points-1."""
    lags_T = _checked_lags(lags)
    if points < 1:
        raise BadValue(f"a symbol needs at least one angle, got {points}.")
    reach = len(lags_T) // 2
    folded = np.zeros(points)
    np.add.at(folded, np.arange(-reach, reach + 1) % points, lags_T)
    return np.fft.fft(folded).conj()


def symbol_range(lags: ArrayLike, *, oversampling: int = 8) -> SymbolRange:
    """The extrema of the symbol of symmetric lags; all eigenvalues of every T_n of them lie between (2.5).

    The grid has `oversampling` points per lag; a trigonometric polynomial of degree d that is at most M in modulus
    on N > 2d equidistant points is at most M / cos(pi d / N) between them (Ehlich-Zeller), which gives the bounds.
    """
    lags_T = _checked_lags(lags)
    if not np.allclose(lags_T, lags_T[::-1], rtol=1e-12, atol=1e-300):
        raise BadValue("the symbol of lags that are not symmetric is not real, and has no least value.")
    degree = len(lags_T) // 2
    points = fast_length(max(oversampling, 3) * len(lags_T))
    values = symbol(lags_T, points).real
    least, largest = float(values.min()), float(values.max())
    middle, spread = (least + largest) / 2, (largest - least) / 2
    spread /= math.cos(math.pi * degree / points)
    return SymbolRange(least, largest, middle - spread, middle + spread)


# ------------------------------------------------------------------ helpers
def fast_length(n: int) -> int:
    """The smallest 2^a 3^b 5^c that is at least n: lengths an FFT likes."""
    from scipy.fft import next_fast_len  # it brings scipy.special, which a scan has no use for

    return int(next_fast_len(n, real=True))


def _embedded(lags_T: Array, size: int) -> Array:
    """The first column of the circulant of this size that holds T in its corner."""
    n = (len(lags_T) + 1) // 2
    column = np.zeros(size)
    column[:n] = lags_T[n - 1 :]
    if n > 1:
        column[1 - n :] = lags_T[: n - 1]
    return column


def _checked_lags(lags: ArrayLike) -> Array:
    lags_T = np.asarray(lags, dtype=np.float64)
    if lags_T.ndim != 1 or len(lags_T) % 2 == 0:
        raise BadValue(f"lags are the 2n - 1 numbers g(-(n-1)) .. g(n-1); got the shape {lags_T.shape}.")
    if not np.isfinite(lags_T).all():
        raise BadValue("the lags of a Toeplitz matrix hold NaN or infinity.")
    return lags_T
