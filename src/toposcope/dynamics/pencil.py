"""The least singular value of M - z I at many z: quickly guessed, exactly computed, or proven from below.

* A guess is a vector. With M = X diag(l) X^-1 all inverses (M - z)^-1 share their two factors, so a step of the power
  method on (M - z)^-1 (M - z)^-* costs two products for all z at once, with X^* X and X^-1 X^-*, or four where these
  would lose the digits. Whatever vector it ends with gives an upper bound, taken from M itself: a bad eigenbasis
  makes it loose, never wrong.
* A proof is a Cholesky factorisation of (M - z)^*(M - z) - t I with room for rounding: where it succeeds, the square
  of the least singular value is at least t.
* Where squaring loses too many digits, or nothing is guessed well, eigenvalues and singular values are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import lapack

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

EPS = float(np.finfo(np.float64).eps)
STEPS = 3  # of the power method
SKEWEST = 1e-4 / EPS  # condition of eigenvectors beyond which they are not used
SKEWED = 1e6  # and beyond which they are not squared
AT_ONCE = 1 << 16  # entries of the matrices that are formed together, and then factored one by one
NEARBY = 1e-8  # how far, in units of |M|, a matrix lies whose eigenvectors are then taken


@dataclass(frozen=True, eq=False)
class _Eigen:
    """M = X diag(l) X^-1, as the power method wants it.

    `inner` and `outer` are the factors, applied one after another, of X^* X and of X^-1 X^-*; `starts` has a column
    X^-1 x for each eigenvalue, x along its left vector, and `sizes` are |x_j||y_j|.
    """

    values: Complex
    right: Complex
    inner: tuple[Complex, ...]
    outer: tuple[Complex, ...]
    starts: Complex
    sizes: Array

    @classmethod
    def of(cls, values: Complex, right: Complex, left: Complex, squared: bool) -> _Eigen:
        lengths = np.linalg.norm(left, axis=1)
        right_h, left_h = right.conj().T, left.conj().T
        gram = left @ left_h
        sizes = np.linalg.norm(right, axis=0) * lengths
        if squared:
            return cls(values, right, (right_h @ right,), (gram,), gram / lengths, sizes)
        return cls(values, right, (right, right_h), (left_h, left), gram / lengths, sizes)


class Pencil:
    """A real square matrix, with what all its shifts M - z I share."""

    def __init__(self, matrix: Array) -> None:
        self.matrix = matrix
        self.size = len(matrix)
        values, self._right = np.linalg.eig(matrix)
        self.eigenvalues: Complex = values.astype(np.complex128)
        self.singular_values: Array = np.asarray(np.linalg.svd(matrix, compute_uv=False), dtype=np.float64)
        self.norm = float(self.singular_values[0]) if self.size else 0.0
        self.frobenius = float(np.linalg.norm(matrix))
        self._line: tuple[float, Complex, Complex] | None = None

    @cached_property
    def turning(self) -> float:
        """|skew M|, no less: beyond it sigma_min(M - (s + i w) I) grows with w."""
        skew = (self.matrix - self.matrix.T) / 2
        return float(np.sqrt(max(0.0, np.linalg.eigvalsh(skew.T @ skew)[-1]))) + 8 * self.size * EPS * self.norm

    @cached_property
    def _eigen(self) -> _Eigen | None:
        """Eigenvectors of M, or of a matrix nearby where M's own are ill-conditioned; None where those are, too."""
        random = np.random.default_rng(0)
        values, right = self.eigenvalues, self._right
        for _ in range(2):
            try:
                left = np.linalg.inv(right)
            except np.linalg.LinAlgError:
                left = np.full_like(right, np.inf)
            skew = float(np.linalg.norm(right, 1) * np.linalg.norm(left, 1))
            if skew < SKEWEST:
                return _Eigen.of(values, right.astype(np.complex128), left.astype(np.complex128), skew < SKEWED)
            noise = random.standard_normal(self.matrix.shape)
            values, right = np.linalg.eig(self.matrix + NEARBY * self.norm / self.size**0.5 * noise)
        return None

    def room(self, away: float | Array) -> float | Array:
        """What rounding may do to the eigenvalues of a factored (M - z)^*(M - z), |z|^2 = `away`.

        Where Cholesky succeeds no eigenvalue is below -(n + 1) eps/2 times the trace (Rump 2006, real numbers);
        complex products and the forming of the matrix are within four times that.
        """
        return 4 * (self.size + 4) * EPS * (self.frobenius + np.sqrt(self.size * away)) ** 2

    def guess(self, points: Complex, steps: int = STEPS) -> tuple[Array, Array]:
        """Upper bounds of sigma_min(M - z I)^2, near to it, and the imaginary part of y^* M y of their vectors."""
        if self._eigen is None:
            return self._solved(points)
        eigen = self._eigen
        gaps = eigen.values[:, None] - points
        gaps[gaps == 0] = EPS * (self.norm or 1.0)
        weights = 1 / gaps
        # u = X^-1 x; begin with the largest term of (M - z)^-1 = sum_j x_j y_j^* / (l_j - z)
        u = eigen.starts[:, np.abs(weights * eigen.sizes[:, None]).argmax(axis=0)]
        for _ in range(steps - 1):
            before = u
            v = weights * u
            for factor in eigen.inner:
                v = factor @ v
            u = weights.conj() * v
            for factor in eigen.outer:
                u = factor @ u
            u /= np.linalg.norm(u, axis=0)
        y = eigen.right @ np.concatenate([weights * before, weights * u], axis=1)
        y /= np.linalg.norm(y, axis=0)
        rest, many = self._image(y) - np.concatenate([points, points]) * y, len(points)
        return self._of_vectors(points, _combined(y[:, many:], rest[:, many:], y[:, :many], rest[:, :many]))

    def _of_vectors(self, points: Complex, y: Complex) -> tuple[Array, Array]:
        image = self._image(y)
        rest = image - points * y
        squares = np.einsum("nm,nm->m", rest.real, rest.real) + np.einsum("nm,nm->m", rest.imag, rest.imag)
        middle = np.einsum("nm,nm->m", y.real, image.imag) - np.einsum("nm,nm->m", y.imag, image.real)
        return np.asarray(np.where(np.isfinite(squares), squares, np.inf)), middle

    def _image(self, y: Complex) -> Complex:
        """M y, by real numbers."""
        return (self.matrix @ np.ascontiguousarray(y).view(np.float64)).view(np.complex128)

    def _solved(self, points: Complex) -> tuple[Array, Array]:
        """As `guess`, by singular vectors."""
        shifted = self.matrix - points[:, None, None] * np.eye(self.size)
        return self._of_vectors(points, np.linalg.svd(shifted)[2][:, -1].conj().T)

    def least(self, z: complex) -> tuple[float, float]:
        """sigma_min(M - z I), and what it is surely not below.

        The least eigenvalue of (M - z)^*(M - z) is several times cheaper than a singular value decomposition; its
        square root is right to eps |M - z|^2 / sigma. Where that matters, the decomposition is used.
        """
        span = self.norm + abs(z)
        square = float(np.linalg.eigvalsh(self.shifted(np.array([z])))[0, 0])
        doubt = self.size * EPS * (16 * span**2 + self.frobenius**2)  # of the eigenvalue, and of the Gram matrix
        if doubt <= 1e-3 * square:
            return float(np.sqrt(square)), float(np.sqrt(square - doubt))
        value = float(np.linalg.svd(self.matrix - z * np.eye(self.size), compute_uv=False)[-1])
        return value, max(value - 8 * self.size * EPS * span, 0.0)

    def shifted(self, points: Complex, taken: float | Array = 0.0) -> Complex:
        """(M - z)^*(M - z) - taken I, or its conjugate, for each z: without a product while Re z stays what it was.

        With A = M - s I it is A^T A + i w (A - A^T) + (w^2 - taken) I, z = s + i w.
        """
        s, w = float(points[0].real), points.imag
        line = self._line
        if line is None or line[0] != s:
            a = self.matrix - s * np.eye(self.size)
            line = self._line = s, (a.T @ a).astype(np.complex128), (1j * (a - a.T)).astype(np.complex128)
        _, still, turning = line
        found = np.empty((len(w), *still.shape), dtype=np.complex128)
        flat = found.view(np.float64)
        np.multiply(turning.view(np.float64), w[:, None, None], out=flat)  # real arithmetic on both parts alike
        flat += still.view(np.float64)
        found.reshape(len(w), -1)[:, :: self.size + 1] += (w**2 - taken)[:, None]
        return found

    def surely_above(self, points: ArrayLike, squares: ArrayLike) -> NDArray[np.bool_]:
        """Where on a vertical line sigma_min(M - z I)^2 is above its square, proven by Cholesky factorisations."""
        z, least = np.atleast_1d(np.asarray(points, dtype=np.complex128), np.asarray(squares))
        many = max(1, AT_ONCE // self.size**2)
        if len(z) > many:
            parts = [slice(i, i + many) for i in range(0, len(z), many)]
            return np.concatenate([self.surely_above(z[part], least[part]) for part in parts])
        shifted = self.shifted(z, least + self.room(np.abs(z) ** 2))
        # one by one and in place: NumPy's factorisation of a stack copies each matrix, and one that fails fails all
        factored = (lapack.zpotrf(each.T, lower=1, clean=0, overwrite_a=1)[1] == 0 for each in shifted)
        return np.fromiter(factored, dtype=bool, count=len(z))


def _combined(y: Complex, image: Complex, earlier: Complex, earlier_image: Complex) -> Complex:
    """Of all combinations of two unit vectors the one whose image is shortest, for each column."""
    along = np.einsum("nm,nm->m", y.conj(), earlier)
    across = earlier - along * y
    size = np.linalg.norm(across, axis=0)
    size[size < 1e-12] = np.inf
    across /= size
    moved = (earlier_image - along * image) / size
    one, two = (np.einsum("nm,nm->m", each.conj(), each).real for each in (image, moved))
    both = np.einsum("nm,nm->m", image.conj(), moved)
    # the lower eigenvector of [[one, both], [conj both, two]]
    half = (two - one) / 2
    root = half + np.sqrt(half**2 + np.abs(both) ** 2)
    found = y - np.where(root > 0, both.conj() / np.where(root > 0, root, 1.0), 0.0) * across
    return np.asarray(found / np.linalg.norm(found, axis=0))
