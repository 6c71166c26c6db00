"""The least singular value of M - z I at many z: quickly guessed, exactly computed, or proven from below.

* A guess is a vector. With M = X diag(l) X^-1 all inverses (M - z)^-1 share their two factors, so a step of the power
  method on (M - z)^-1 (M - z)^-* costs four products for all z at once. Whatever vector it ends with gives an upper
  bound, taken from M itself: a bad eigenbasis makes it loose, never wrong.
* A proof is a Cholesky factorisation of (M - z)^*(M - z) - t I with room for rounding: where it succeeds, the square
  of the least singular value is at least t.
* Where squaring loses too many digits, or nothing is guessed well, eigenvalues and singular values are computed.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

EPS = float(np.finfo(np.float64).eps)
STEPS = 3  # of the power method
SKEWEST = 1e-4 / EPS  # condition of eigenvectors beyond which they are not used
NEARBY = 1e-8  # how far, in units of |M|, a matrix lies whose eigenvectors are then taken


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
    def _eigen(self) -> tuple[Complex, Complex, Complex] | None:
        """Eigenvalues l, eigenvectors X and X^-1, of a matrix nearby where M's own are ill-conditioned; or None."""
        random = np.random.default_rng(0)
        values, right = self.eigenvalues, self._right
        for _ in range(2):
            try:
                left = np.linalg.inv(right)
            except np.linalg.LinAlgError:
                left = np.full_like(right, np.inf)
            if np.linalg.norm(right, 1) * np.linalg.norm(left, 1) < SKEWEST:
                return values, right.astype(np.complex128), left.astype(np.complex128)
            noise = random.standard_normal(self.matrix.shape)
            values, right = np.linalg.eig(self.matrix + NEARBY * self.norm / self.size**0.5 * noise)
        return None

    @cached_property
    def _transposed(self) -> tuple[Complex, ...]:
        assert self._eigen is not None
        return tuple(np.ascontiguousarray(each.conj().T) for each in self._eigen[1:])

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
        values, right, left = self._eigen
        right_h, left_h = self._transposed
        gaps = values[:, None] - points
        gaps[gaps == 0] = EPS * (self.norm or 1.0)
        weights = 1 / gaps
        # begin with the largest term of (M - z)^-1 = sum_j x_j y_j^* / (l_j - z)
        sizes = np.linalg.norm(right, axis=0) * np.linalg.norm(left, axis=1)
        x = left_h[:, np.abs(weights * sizes[:, None]).argmax(axis=0)]
        x /= np.linalg.norm(x, axis=0)
        last: tuple[Complex, Complex] | None = None
        for step in range(steps):
            y = right @ (weights * (left @ x))
            length = np.linalg.norm(y, axis=0)
            y /= length
            if step + 1 == steps:
                break
            last = y, x / length
            x = left_h @ (weights.conj() * (right_h @ y))
            x /= np.linalg.norm(x, axis=0)
        if last is not None:
            y = _combined(y, x / length, *last)
        return self._of_vectors(points, y)

    def _of_vectors(self, points: Complex, y: Complex) -> tuple[Array, Array]:
        image = self.matrix @ y.real + 1j * (self.matrix @ y.imag)
        rest = image - points * y
        squares = np.einsum("nm,nm->m", rest.real, rest.real) + np.einsum("nm,nm->m", rest.imag, rest.imag)
        middle = np.einsum("nm,nm->m", y.real, image.imag) - np.einsum("nm,nm->m", y.imag, image.real)
        return np.asarray(np.where(np.isfinite(squares), squares, np.inf)), middle

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
        square = float(np.linalg.eigvalsh(self.shifted(z, 0.0))[0])
        doubt = self.size * EPS * (16 * span**2 + self.frobenius**2)  # of the eigenvalue, and of the Gram matrix
        if doubt <= 1e-3 * square:
            return float(np.sqrt(square)), float(np.sqrt(square - doubt))
        value = float(np.linalg.svd(self.matrix - z * np.eye(self.size), compute_uv=False)[-1])
        return value, max(value - 8 * self.size * EPS * span, 0.0)

    def shifted(self, z: complex, taken: float) -> Complex:
        """(M - z)^*(M - z) - taken I, or its conjugate: without a product while Re z stays what it was.

        With A = M - s I it is A^T A + i w (A - A^T) + (w^2 - taken) I, w = Im z.
        """
        line = self._line
        if line is None or line[0] != z.real:
            a = self.matrix - z.real * np.eye(self.size)
            line = self._line = z.real, (a.T @ a).astype(np.complex128), (1j * (a - a.T)).astype(np.complex128)
        _, still, turning = line
        found = np.empty_like(still)
        flat = found.view(np.float64)
        np.multiply(turning.view(np.float64), z.imag, out=flat)  # real arithmetic on both parts alike
        flat += still.view(np.float64)
        found.ravel()[:: self.size + 1] += z.imag**2 - taken
        return found

    def surely_above(self, z: complex, square: float) -> bool:
        """Whether sigma_min(M - z I)^2 > square, proven by a Cholesky factorisation."""
        shifted = self.shifted(z, square + float(self.room(abs(z) ** 2)))
        return bool(lapack.zpotrf(shifted.T, lower=1, clean=0, overwrite_a=1)[1] == 0)


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
