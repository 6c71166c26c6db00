"""How far a matrix is from having an eigenvalue on a vertical line: a certified lower bound, not a grid.

    beta_s(M) = min over real w of sigma_min(M - (s + i w) I)

is the 2-norm of the smallest complex perturbation that puts an eigenvalue of M on the line Re = s; with s = 0 and M
stable it is the distance to instability. A grid over w only gives an upper bound, which can be many times too large.
sigma_min changes by at most |w - w'| between w and w', so a value at one w is a proof about an interval around it,
and branch and bound turns such proofs into one for the whole line. Where the distance is well above rounding an
interval of half width h around c is proven by one Cholesky factorisation: f(c) >= t + h exactly when
(M - z)^*(M - z) - (t + h)^2 I is positive, z = s + i c. Nearer to zero singular values are computed instead.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import scipy.linalg.lapack
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
TIGHTNESS = 0.8  # stop when the proven bound is this share of the best value seen
MOST_SAMPLES = 4000


@dataclass(frozen=True)
class LineDistance:
    """The distance to the line Re = s: proven to be at least `lower`, and at most `upper` (attained)."""

    s: float
    lower: float
    upper: float
    samples: int


def distance_to_line(matrix: Array, s: float = 0.0, *, tightness: float = TIGHTNESS) -> LineDistance:
    """Certified bounds of beta_s(M) for a real square matrix.

    Beyond |w| = 2 |M| + |s| the function exceeds its value at 0, and it is even in w: [0, 2|M| + |s|] is enough.
    """
    size = len(matrix)
    norm = float(np.linalg.norm(matrix, 2)) if size else 0.0
    end = 2 * norm + abs(s)
    if size == 0 or end == 0.0:
        return LineDistance(s, 0.0, 0.0, 0)
    sampler = _Sampler(matrix, norm)
    eigenvalues = np.linalg.eigvals(matrix)
    # Dips lie near the eigenvalues that are close to the line: starting there finds the minimum at once.
    near = np.abs(eigenvalues[np.argsort(np.abs(eigenvalues.real - s))[:4]].imag)
    starts = np.unique(np.clip(np.concatenate([[0.0], near]), 0.0, end))
    best = float(sampler(s, starts)[0].min())
    if (tightness * best) ** 2 > 1e6 * size * EPS * (norm + abs(s) + end) ** 2:
        return _by_factors(sampler, s, end, tightness, best, len(starts))
    starts = np.unique(np.concatenate([starts, np.linspace(0.0, end, 9)]))
    return _by_samples(sampler, s, tightness, starts, least=100 * size * EPS * norm)


def _by_factors(sampler: _Sampler, s: float, end: float, tightness: float, best: float, samples: int) -> LineDistance:
    """Halve intervals until each is proven to stay above tightness * best; a lower value met is the new best."""
    intervals = [(end * i / 8, end * (i + 1) / 8) for i in range(8)]
    while intervals and samples < MOST_SAMPLES:
        a, b = intervals.pop()
        centre, half = (a + b) / 2, (b - a) / 2
        samples += 1
        if sampler.surely_above(s, centre, tightness * best + half):
            continue
        if half < (1 - tightness) * best:  # so short that the value itself must be low here
            best = min(best, float(sampler(s, np.array([centre]))[0][0]))
        intervals += [(a, centre), (centre, b)]
    return LineDistance(s, 0.0 if intervals else tightness * best, best, samples)


def _by_samples(sampler: _Sampler, s: float, tightness: float, starts: Array, least: float) -> LineDistance:
    """Branch and bound on values at interval ends, which bound the inside by (f(a) + f(b) - (b - a))/2."""
    values, floors = sampler(s, starts)
    best = float(values.min())
    queue: list[tuple[float, float, float, float, float]] = []

    def push(a: float, b: float, fa: float, fb: float) -> None:
        heapq.heappush(queue, ((fa + fb - (b - a)) / 2, a, b, fa, fb))

    for i in range(len(starts) - 1):
        push(starts[i], starts[i + 1], floors[i], floors[i + 1])
    samples = len(starts)
    while samples < MOST_SAMPLES and queue[0][0] < tightness * best and best > least:
        # Split several of the worst intervals at once: one batched call instead of many small ones.
        worst = [heapq.heappop(queue) for _ in range(min(8, len(queue))) if queue[0][0] < tightness * best]
        middles = np.array([_split(*interval[1:]) for interval in worst])
        values, floors = sampler(s, middles)
        samples += len(middles)
        best = min(best, float(values.min()))
        for (_, a, b, fa, fb), middle, floor in zip(worst, middles, floors, strict=True):
            push(a, float(middle), fa, float(floor))
            push(float(middle), b, float(floor), fb)
    return LineDistance(s, float(max(0.0, min(queue[0][0], best))), best, samples)


def _split(a: float, b: float, fa: float, fb: float) -> float:
    """Where the interval's lower bound is attained, kept away from the ends."""
    middle = (a + b + fa - fb) / 2
    return min(max(middle, a + 0.2 * (b - a)), b - 0.2 * (b - a))


class _Sampler:
    """sigma_min(M - (s + i w) I) at many w, each with a value it is surely not below.

    (M - z)^*(M - z) = M^T M - z M^T - conj(z) M + |z|^2 I costs no product per sample, and its least eigenvalue is
    several times cheaper than a singular value decomposition; its square root is right to eps |M - z|^2 / sigma.
    Where sigma is so small that this matters, the decomposition is used.
    """

    def __init__(self, matrix: Array, norm: float) -> None:
        self._matrix, self._norm, self._gram = matrix, norm, matrix.T @ matrix
        self._frobenius = float(np.linalg.norm(matrix))
        self._even, self._odd = matrix + matrix.T, matrix.T - matrix

    def surely_above(self, s: float, frequency: float, value: float) -> bool:
        """Whether sigma_min(M - (s + i w) I) > value, proven by a Cholesky factorisation with room for rounding."""
        size = len(self._matrix)
        away = s * s + frequency * frequency
        shifted = np.empty((size, size), dtype=np.complex128, order="F")
        shifted.real = self._gram - s * self._even
        shifted.imag = -frequency * self._odd
        # Where Cholesky succeeds no eigenvalue is below -(n + 1) eps/2 times the trace (Rump 2006, real numbers);
        # complex products and the forming of this matrix are within four times that.
        room = 4 * (size + 4) * EPS * (self._frobenius + np.sqrt(size * away)) ** 2
        shifted[np.diag_indices(size)] += away - value * value - room
        return bool(scipy.linalg.lapack.zpotrf(shifted, lower=1, clean=0, overwrite_a=1)[1] == 0)

    def __call__(self, s: float, frequencies: Array) -> tuple[Array, Array]:
        z = s + 1j * frequencies[:, None, None]
        size = len(self._matrix)
        span = self._norm + np.abs(z[:, 0, 0])
        gram = self._gram - z * self._matrix.T - z.conj() * self._matrix
        diagonal = np.arange(size)
        gram[:, diagonal, diagonal] += np.abs(z[:, :, 0]) ** 2
        squares = np.linalg.eigvalsh(gram)[:, 0]
        doubt = size * EPS * (16 * span**2 + self._frobenius**2)  # of the eigenvalue, and of the Gram matrix
        values = np.sqrt(np.maximum(squares, 0.0))
        floors = np.sqrt(np.maximum(squares - doubt, 0.0))
        coarse = doubt > 1e-3 * squares
        if coarse.any():
            shifted = self._matrix - z[coarse] * np.eye(size)
            values[coarse] = np.linalg.svd(shifted, compute_uv=False)[:, -1]
            floors[coarse] = np.maximum(values[coarse] - 8 * size * EPS * span[coarse], 0.0)
        return values, floors


def best_line(matrix: Array, least: float, most: float) -> LineDistance:
    """The line Re = s with least <= s < most that eigenvalues are furthest from: proof that some stay to its right.

    Candidates are `least` and the middles between neighbouring real parts; the most promising one is certified.
    """
    parts = np.unique(np.linalg.eigvals(matrix).real)
    edges = np.concatenate([[least], parts[(parts > least) & (parts <= most)]])
    candidates = np.unique(np.concatenate([[least], (edges[:-1] + edges[1:]) / 2]))
    candidates = candidates[(candidates >= least) & (candidates < most)]
    if not len(candidates):
        return LineDistance(least, 0.0, 0.0, 0)
    gaps = np.array([np.abs(parts - s).min() for s in candidates])
    promising = candidates[np.argsort(-gaps)[:4]]  # |Re lambda - s| bounds beta_s from above
    frequencies = np.unique(np.abs(np.linalg.eigvals(matrix).imag))[:8]
    sampler = _Sampler(matrix, float(np.linalg.norm(matrix, 2)))
    looks = [float(sampler(s, frequencies)[0].min()) for s in promising]
    return distance_to_line(matrix, float(promising[int(np.argmax(looks))]))
