"""The spectrum of the rotary kernel g(t) = sum_f a_f cos(w_f t + phi_f), in closed form, whatever the context.

T_n(g) = V M V^T, where V has the columns cos(w_f x), sin(w_f x) over positions x: rank at most 2F for every n.
Its non-zero spectrum is that of a 2F x 2F matrix:

* all a_f >= 0, no phases: the Gram matrix V^T V is made of Dirichlet sums sin(n D/2) / sin(D/2), and with positions
  counted from the middle cosines and sines are orthogonal: two F x F eigenvalue problems, no matter what n is;
* any signs or phases: the triangular factor R of V = QR, by doubling. V_2n is V_n above V_n turned by n, so R_2n is
  the QR of two copies of R_n: log2(n) steps of size 2F. Then the singular values of T_n are those of R M R^T.
  (Section 3.7 takes D^{1/2} diag(w) D^{1/2} instead; a root of the Gram matrix loses half of the digits, R does not.)
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.core.memory import require_memory
from toposcope.encodings.record import Rotary
from toposcope.spectra.toeplitz import Spectrum

Array = NDArray[np.float64]
_OFFSETS_AT_ONCE = 8192
_LAW_SHIFT = 1.5 - np.euler_gamma - math.log(2)


def dirichlet(differences: ArrayLike, n: int) -> Array:
    """The Dirichlet sum over n positions counted from their middle: sin(n D/2) / sin(D/2), n where D = 0.

    D is first brought to [-pi, pi]; a whole turn changes the sign by (-1)^(n-1), positions being halves for even n.
    """
    given = np.asarray(differences, dtype=np.float64)
    turns = np.rint(given / (2 * np.pi))
    half = (given - 2 * np.pi * turns) / 2
    below = np.sin(half)
    zero = below == 0
    sums = np.where(zero, float(n), np.sin(n * half) / np.where(zero, 1.0, below))
    return np.where((turns % 2 == 1) & (n % 2 == 0), -sums, sums)


def kernel_values(
    offsets: ArrayLike, frequencies: ArrayLike, weights: ArrayLike, phases: ArrayLike | None = None
) -> Array:
    """g(t) = sum_f a_f cos(w_f t + phi_f) at the given offsets t = i - j (query minus key)."""
    w_F, a_F, phi_F = _checked(frequencies, weights, phases)
    t_T = np.atleast_1d(np.asarray(offsets, dtype=np.float64))
    values = np.empty(len(t_T))
    for first in range(0, len(t_T), _OFFSETS_AT_ONCE):
        part = slice(first, first + _OFFSETS_AT_ONCE)
        values[part] = np.cos(t_T[part, None] * w_F + phi_F) @ a_F
    return values


def kernel_spectrum(frequencies: ArrayLike, weights: ArrayLike, n: int, phases: ArrayLike | None = None) -> Spectrum:
    """The non-zero spectrum of T_n(g): eigenvalues without phases (signed where weights are), else singular values.

    Cost O(F^3) for weights a_f >= 0 without phases, O(F^3 log n) otherwise; no n x n and no n x F matrix is made.
    Values that are zero up to rounding may be listed; `Spectrum.rank` counts those that are not.
    """
    w_F, a_F, phi_F = _checked(frequencies, weights, phases)
    if n < 1:
        raise BadValue(f"a context has at least one position, got {n}.")
    size = float(np.abs(a_F).max())
    if size == 0:
        return Spectrum(np.zeros(min(n, 2 * len(a_F))), n)
    a_F = a_F / size  # weights of any size, without underflow on the way
    turned = bool(phi_F.any())  # no other float64 has a sine of 0
    require_memory(100 * len(w_F) ** 2, f"the kernel of {len(w_F):,} frequencies", "Use a smaller head.")
    if not turned and (a_F >= 0).all():
        root_FF = np.outer(np.sqrt(a_F), np.sqrt(a_F))
        apart, together = dirichlet(w_F[:, None] - w_F, n), dirichlet(w_F[:, None] + w_F, n)
        even, odd = np.linalg.eigvalsh(np.stack([root_FF * (apart + together), root_FF * (apart - together)]) / 2)
        values: Array = np.sort(np.maximum(np.concatenate([even, odd]), 0.0))[::-1].astype(np.float64)
        return Spectrum(size * values[:n], n)
    small = _small(_kept_factor(w_F.tobytes(), n), a_F, phi_F)
    if turned:
        return Spectrum(size * np.asarray(np.linalg.svd(small, compute_uv=False), dtype=np.float64), n)
    values = size * np.asarray(np.linalg.eigvalsh((small + small.T) / 2), dtype=np.float64)
    return Spectrum(values[np.argsort(-np.abs(values), kind="stable")], n)


@lru_cache(maxsize=8)
def _kept_factor(frequencies: bytes, n: int) -> Array:
    """`positions_factor`, which the heads of a model share."""
    return positions_factor(np.frombuffer(frequencies), n)


def positions_factor(frequencies: ArrayLike, n: int) -> Array:
    """The triangular factor R of the n x 2F matrix V = [cos(w_f x), sin(w_f x)], x = 0 .. n-1, without V.

    V_(m+k) is V_m above V_k turned by m; so R_(m+k) is the QR of R_m above R_k turned by m, along the binary digits
    of n. Exact to rounding, and R^T R = V^T V.
    """
    w_F = np.atleast_1d(np.asarray(frequencies, dtype=np.float64))
    power = np.concatenate([np.ones_like(w_F), np.zeros_like(w_F)])[None, :]
    size, done, made = 1, 0, np.zeros((0, 2 * len(w_F)))
    while True:
        if n & size:
            made = _joined(made, _turned(power, w_F, done))
            done += size
        if done == n:
            return made
        power = _joined(power, _turned(power, w_F, size))
        size *= 2


def contraction_law(n: int, base: float, head_dim: int) -> float | None:
    """The law of S5g for equal weights and w_f = base^(-2f/h): rho_n ~ 1 - ln(n / 2.52) / ln b - 1/h.

    An approximation (the sum over frequencies replaced by its integral) for 1 << n << b; None outside 8 <= n <= b.
    """
    if not 8 <= n <= base:
        return None
    return float(1 - (math.log(n / 2) - _LAW_SHIFT) / math.log(base) - 1 / head_dim)


def constant_vector_bound(frequencies: ArrayLike, weights: ArrayLike, n: int) -> float:
    """A lower bound of lambda_max(T_n(g)) / n, a theorem (S5g): sum_f a_f [sin(n w_f/2) / (n sin(w_f/2))]^2.

    It is the Rayleigh quotient of the constant vector, so it holds for any weights without phases.
    """
    w_F, a_F, _ = _checked(frequencies, weights, None)
    return float((a_F * (dirichlet(w_F, n) / n) ** 2).sum())


def rotary_weights(rotary: Rotary, context: int | None = None) -> tuple[Array, Array]:
    """Frequencies and weights of the kernel that constant content gives: every channel alike, sum 1.

    A pair that turns weighs 2 c^2, c the attention factor on both query and key; channels that do not turn weigh 1
    each and stand together at frequency 0.
    """
    frequencies_F = rotary.frequencies(context)
    weights_F = np.full(len(frequencies_F), 2.0 * rotary.attention_factor**2)
    still = rotary.head_dim - rotary.channels
    if still:
        frequencies_F, weights_F = np.append(frequencies_F, 0.0), np.append(weights_F, float(still))
    return frequencies_F, weights_F / weights_F.sum()


def rotary_rank(frequencies_F: Array, n: int) -> int:
    """The rank of T_n(g) for positive weights: the number of different e^(i w), e^(-i w) among them, at most n.

    T_n(g) = V M V^T with V the Vandermonde matrix of these points, which has full rank where they differ.
    """
    turn_F = np.mod(np.abs(frequencies_F), 2 * np.pi)
    angles = np.unique(np.minimum(turn_F, 2 * np.pi - turn_F))  # two points on the circle each; at 0 and pi one
    return min(n, 2 * len(angles) - int(((angles == 0) | (angles == np.pi)).sum()))


def peak_offset(
    frequencies: ArrayLike,
    weights: ArrayLike,
    phases: ArrayLike | None = None,
    *,
    reach: int = 1024,
    causal: bool = True,
) -> int:
    """The offset t = i - j at which g is largest: 1 means "looks one token back", the nearest one where several tie.

    Searched among 0 <= t <= reach, or -reach <= t <= reach where not `causal`.
    """
    if reach < 0:
        raise BadValue(f"the reach of a search for the peak cannot be negative, got {reach}.")
    past = np.arange(reach + 1)
    offsets = past if causal else np.concatenate([past, -past[1:]])
    offsets = offsets[np.argsort(np.abs(offsets), kind="stable")]
    values = kernel_values(offsets, frequencies, weights, phases)
    size = float(np.abs(np.asarray(weights, dtype=np.float64)).sum())
    return int(offsets[np.flatnonzero(values >= values.max() - 1e-12 * size)[0]])


def _turned(rows: Array, w_F: Array, by: int) -> Array:
    """The rows [cos w x, sin w x] moved from positions x to x + by."""
    pairs = len(w_F)
    cos, sin = np.cos(w_F * by), np.sin(w_F * by)
    c, s = rows[:, :pairs], rows[:, pairs:]
    return np.concatenate([c * cos - s * sin, s * cos + c * sin], axis=1)


def _joined(above: Array, below: Array) -> Array:
    stack = np.concatenate([above, below])
    return np.asarray(np.linalg.qr(stack, mode="r")) if len(stack) > 1 else stack


def _small(factor: Array, a_F: Array, phi_F: Array) -> Array:
    """R M R^T with M = [[a cos phi, a sin phi], [-a sin phi, a cos phi]], diagonal in the frequencies."""
    pairs = len(a_F)
    c, s = factor[:, :pairs], factor[:, pairs:]
    along, across = a_F * np.cos(phi_F), a_F * np.sin(phi_F)
    return (c * along) @ c.T + (s * along) @ s.T + (c * across) @ s.T - (s * across) @ c.T


def _checked(frequencies: ArrayLike, weights: ArrayLike, phases: ArrayLike | None) -> tuple[Array, Array, Array]:
    w_F = np.atleast_1d(np.asarray(frequencies, dtype=np.float64))
    a_F = np.atleast_1d(np.asarray(weights, dtype=np.float64))
    phi_F = np.zeros_like(w_F) if phases is None else np.atleast_1d(np.asarray(phases, dtype=np.float64))
    if w_F.ndim != 1 or w_F.shape != a_F.shape or w_F.shape != phi_F.shape or not w_F.size:
        raise BadValue(
            f"a rotary kernel needs one weight and one phase per frequency, got {w_F.shape} frequencies, "
            f"{a_F.shape} weights, {phi_F.shape} phases."
        )
    if not (np.isfinite(w_F).all() and np.isfinite(a_F).all() and np.isfinite(phi_F).all()):
        raise BadValue("frequencies, weights or phases hold NaN or infinity.")
    return w_F, a_F, phi_F
