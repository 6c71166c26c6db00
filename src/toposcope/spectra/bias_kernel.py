"""Spectra of biases that depend on distance: as the summand B of the logits, and as the factor exp(B) (S7).

ALiBi's two matrices have inverses that are tridiagonal but for their corners, so their eigenvectors are sines and
cosines of the position x counted from the middle, and the angles are roots of one equation each. With slope m:

* logits  B = -m |i-j|:   lambda = m / (1 - cos theta), theta = (2k+1) pi / n            (odd vectors sin(theta x))
                          lambda = m / (1 - cos theta), tan(n theta/2) tan(theta/2) = -1/n   (even, cos(theta x))
                          lambda = -m / (cosh theta - 1), tanh(n theta/2) tanh(theta/2) = 1/n    (cosh(theta x))
  The last one is the single negative eigenvalue of S4; u = n theta/2 tends to the root of u tanh u = 1, which is
  1.19968, so lambda tends to -m n^2 / (2 u^2) = -0.34741 m n^2.
* kernel  exp(B) = r^|i-j|, r = e^-m:   lambda = sinh m / (cosh m - cos theta), the symbol at the n roots of
  (n-1) theta/2 + arg(e^{i theta} - r) = k pi/2, k = 1 .. n, in (0, pi).

*Proof.* Second differences of |i-j| are 2 at i = j and 0 elsewhere, so inside the matrix an eigenvector obeys
2 v_k = -(lambda/m) (v_(k-1) - 2 v_k + v_(k+1)); the first row and the first difference of the first two rows give
the boundary: v_(-1) = v_0 for odd vectors, (n-1)(v_(-1) - v_0) = 2 v_0 for even ones. For r^|i-j| the inverse is
tridiagonal with corner 1 instead of 1 + r^2, so v_(-1) = r v_0. The equations above are these, solved for theta. ∎

All other biases go through the routes of `toposcope.spectra.toeplitz`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue

Array = NDArray[np.float64]
_STEPS = 60


def alibi_logit_eigenvalues(slope: float, n: int) -> Array:
    """All eigenvalues of B = -m |i-j|, ascending: one negative, n - 1 positive (n = 1: the single 0)."""
    _check(slope, n)
    if n == 1:
        return np.zeros(1)
    positive = 1 / (2 * np.sin(_logit_angles(n) / 2) ** 2)
    return slope * np.concatenate([[-_negative_size(n)], np.sort(positive)])


def alibi_logit_extremes(slope: float, n: int) -> tuple[float, float, float]:
    """The negative eigenvalue of -m |i-j|, its largest positive one, and its smallest positive one, at any n >= 2."""
    _check(slope, n)
    if n < 2:
        raise BadValue("the distance matrix of one position is zero; it has no extreme eigenvalues.")
    angles = _odd_angles(n, ends=True), _even_angles(n, ends=True)
    angle = np.concatenate(angles)
    return (
        -slope * _negative_size(n),
        float(slope / (2 * np.sin(angle.min() / 2) ** 2)),
        float(slope / (2 * np.sin(angle.max() / 2) ** 2)),
    )


def alibi_kernel_eigenvalues(slope: float, n: int) -> Array:
    """All eigenvalues of e^{-m |i-j|}, ascending; positive, with sum n (a correlation matrix, S7)."""
    _check(slope, n)
    return np.sort(alibi_symbol(slope, _kernel_angles(slope, n, np.arange(1, n + 1))))


def alibi_kernel_eigenvalues_at(slope: float, n: int, numbers: ArrayLike) -> Array:
    """Those eigenvalues of e^{-m |i-j|} that have the given numbers, counted from the largest, 1 .. n."""
    _check(slope, n)
    number = np.asarray(numbers, dtype=np.int64).ravel()
    if number.size and not (number.min() >= 1 and number.max() <= n):
        raise BadValue(f"the {n} eigenvalues are numbered 1 to {n}, got {number.min()} to {number.max()}.")
    return alibi_symbol(slope, _kernel_angles(slope, n, number))


def alibi_kernel_extremes(slope: float, n: int) -> tuple[float, float]:
    """The least and the largest eigenvalue of e^{-m |i-j|} at any n, from two roots."""
    _check(slope, n)
    largest, least = alibi_symbol(slope, _kernel_angles(slope, n, np.array([1, n])))
    return float(least), float(largest)


def alibi_symbol(slope: float, angles: ArrayLike) -> Array:
    """The symbol of e^{-m|t|}: sinh m / (cosh m - cos theta), between tanh(m/2) and coth(m/2)."""
    ratio = math.exp(-slope)
    gap = -math.expm1(-slope)  # 1 - r, without cancellation
    half = np.sin(np.asarray(angles, dtype=np.float64) / 2) ** 2
    return np.asarray(gap * (1 + ratio) / (gap**2 + 4 * ratio * half), dtype=np.float64)


def alibi_symbol_range(slope: float) -> tuple[float, float]:
    """The least and largest value of the symbol: every eigenvalue at every n lies strictly between (2.5)."""
    _check(slope, 1)
    return math.tanh(slope / 2), 1 / math.tanh(slope / 2)


def alibi_effective_rank_limit(slope: float) -> float:
    """Effective rank per position of e^{-m|i-j|} as n grows: 1 - e^{-2m}.

    By Szegő the entropy tends to ln n - (1/2pi) int f ln f with f the symbol, a Poisson kernel; ln f is harmonic
    up to a constant, so the integral is its value inside the disc: -ln(1 - r^2).
    """
    _check(slope, 1)
    return -math.expm1(-2 * slope)


def _negative_size(n: int) -> float:
    """The size of the one negative eigenvalue at m = 1: 1 / (cosh theta - 1), tanh(n theta/2) tanh(theta/2) = 1/n."""
    # In u = n theta/2 the left side grows from 0 past 1/n: bisection needs no more.
    low, high = 0.0, 3.0 + 1.0 / n
    while math.tanh(high) * math.tanh(high / n) < 1 / n:  # n = 2: u = 0.96, n large: u = 1.2; never far
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if math.tanh(middle) * math.tanh(middle / n) < 1 / n:
            low = middle
        else:
            high = middle
    return 1 / (2 * math.sinh((low + high) / 2 / n) ** 2)


def _odd_angles(n: int, *, ends: bool = False) -> Array:
    """theta = (2k+1) pi / n below pi: floor(n/2) of them."""
    number = np.array([0, n // 2 - 1]) if ends else np.arange(n // 2)
    return (2 * number + 1) * np.pi / n


def _even_angles(n: int, *, ends: bool = False) -> Array:
    """Roots of tan(n theta/2) tan(theta/2) = -1/n, one in each ((2k-1) pi/n, 2k pi/n): ceil(n/2) - 1 of them.

    Newton on n theta/2 - k pi + arctan(1 / (n tan(theta/2))) = 0, whose slope lies between 0.35 n and 0.5 n.
    """
    count = (n + 1) // 2 - 1
    number = np.array([1.0, count]) if ends and count else np.arange(1, count + 1, dtype=np.float64)
    angle = (2 * number - 0.3) * np.pi / n
    for _ in range(_STEPS):
        tangent = np.tan(angle / 2)
        value = n * angle / 2 - number * np.pi + np.arctan(1 / (n * tangent))
        slope = n / 2 * (1 - (1 + tangent**2) / (1 + (n * tangent) ** 2))
        step = value / slope
        angle = np.clip(angle - step, (2 * number - 1) * np.pi / n, 2 * number * np.pi / n)
        if (np.abs(step) <= 1e-9 * angle).all():  # the next step would be of the order of its square
            break
    return angle


def _logit_angles(n: int) -> Array:
    return np.concatenate([_odd_angles(n), _even_angles(n)])


def _kernel_angles(slope: float, n: int, number: NDArray[np.int_]) -> Array:
    """Roots of (n-1) theta/2 + arg(e^{i theta} - r) = k pi/2; the left side grows and is concave, so Newton from
    anywhere lands left of the root and then rises to it."""
    ratio, gap = math.exp(-slope), -math.expm1(-slope)
    target = number * np.pi / 2
    angle = np.maximum(0.0, (target - np.pi) * 2 / max(n - 1, 1))
    # a better start: theta = k pi / (n + 1), at most the root times a factor; Newton's first step brings it left
    angle = np.maximum(angle, 0.5 * number * np.pi / (n + 1))
    for _ in range(_STEPS):
        half = np.sin(angle / 2) ** 2
        value = (n - 1) * angle / 2 + np.arctan2(np.sin(angle), gap - 2 * half) - target
        rise = (n - 1) / 2 + (gap + 2 * ratio * half) / (gap**2 + 4 * ratio * half)
        step = value / rise
        angle = np.clip(angle - step, 0.0, np.pi)
        if (np.abs(step) <= 1e-9 * angle).all():
            break
    return angle


def _check(slope: float, n: int) -> None:
    if not (math.isfinite(slope) and slope > 0):
        raise BadValue(f"ALiBi's closed form needs a positive slope, got {slope}.")
    if n < 1:
        raise BadValue(f"a context has at least one position, got {n}.")
