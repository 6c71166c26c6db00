"""The kernels exp(bias) of additive biases, and the biases as summands of the logits, at every context."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.core.memory import require_memory
from toposcope.encodings.record import Encoding
from toposcope.spectra import bias_kernel, toeplitz
from toposcope.spectra.points import KernelPoints, Point, affordable, along, of_values
from toposcope.spectra.singular import effective_rank
from toposcope.spectra.toeplitz import Spectrum
from toposcope.spectra.toeplitz_points import LAGS_LIMIT, toeplitz_points

Array = NDArray[np.float64]
ALL_EIGENVALUES = 2**21  # ALiBi: beyond it only the extremes are computed
BIASES_AT_ONCE = 2**24  # entries of a table with all heads of a bias that is not Toeplitz


def bias_points(encoding: Encoding, contexts: Sequence[int], head: int) -> KernelPoints:
    """exp(B) over exp(b(0)), and B itself, of one head: closed forms for ALiBi, else Toeplitz or dense matrices."""
    bias = encoding.bias
    assert bias is not None
    kernel = "exp(bias) over exp(bias at 0); the bias itself in logit_points"
    if not bias.toeplitz:
        return _two_sided(encoding, contexts, head, kernel)
    near = bias.by_offset([-1, 0, 1])[head]
    if encoding.name == "alibi" and near[1] == 0:
        if near[0] == near[2] < 0:
            slope = float(-near[2])
            return along(
                kernel,
                (_alibi_kernel(slope, n) for n in contexts),
                (_alibi_logits(slope, n) for n in contexts),
            )
        if near[0] == -near[2] != 0:
            return _one_sided_alibi(float(abs(near[2])), contexts, kernel)
    contexts, skipped = affordable(contexts, LAGS_LIMIT)
    if not contexts:
        return along(kernel, (), skipped=skipped)
    longest = contexts[-1]
    lags = _offsets(encoding, longest, head)
    own = lags[longest - 1]
    if (lags - own).max() > 700:
        raise BadValue(f"exp of head {head}'s bias leaves the range of float64 at {longest} positions.")
    positive = encoding.name == "kerple"  # a conditionally positive definite bias has a positive exp (Schoenberg)
    return along(
        kernel,
        toeplitz_points(np.exp(lags - own), contexts, positive=positive),
        toeplitz_points(lags, contexts, positive=False),
        skipped=skipped,
    )


def _offsets(encoding: Encoding, longest: int, head: int) -> Array:
    """The bias of one head at offsets -(n-1) .. n-1, in pieces: a bias table holds all heads at once."""
    assert encoding.bias is not None
    require_memory(64 * longest, f"a kernel at {longest:,} positions", "Use a shorter context.")
    lags = np.empty(2 * longest - 1)
    for first in range(0, len(lags), 2**16):
        piece = np.arange(first, min(first + 2**16, len(lags)))
        lags[piece] = encoding.bias.by_offset(piece - (longest - 1))[head]
    return lags


def _alibi_kernel(slope: float, n: int) -> Point:
    if n <= ALL_EIGENVALUES:
        values = bias_kernel.alibi_kernel_eigenvalues(slope, n)
        return of_values(Spectrum(values, n), "closed form: roots of the KMS matrix", rank=n, regular=True)
    least, largest = bias_kernel.alibi_kernel_extremes(slope, n)
    return Point(
        context=n,
        lambda_max_over_n=largest / n,
        effective_rank=n * bias_kernel.alibi_effective_rank_limit(slope),
        condition=largest / least,
        rank=n,
        statement="theorem",
        method="closed form: extreme roots of the KMS matrix; effective rank from the symbol",
        effective_rank_statement="limit",
        negative=0,
        rank_statement="theorem",
        condition_statement="theorem",
    )


def _alibi_logits(slope: float, n: int) -> Point:
    if n <= ALL_EIGENVALUES:
        values = bias_kernel.alibi_logit_eigenvalues(slope, n)
        more = int(n > 1)  # at n = 1 the matrix is zero
        return of_values(
            Spectrum(values, n), "closed form: roots of |i-j|", rank=n * more, regular=n > 1, negative=more
        )
    negative, _, least = bias_kernel.alibi_logit_extremes(slope, n)
    # |lambda| falls like 1/k^2 and keeps its ratios as n grows, so the effective rank has a limit.
    limit = effective_rank(bias_kernel.alibi_logit_eigenvalues(slope, ALL_EIGENVALUES))
    return Point(
        context=n,
        lambda_max_over_n=-negative / n,
        effective_rank=limit,
        condition=-negative / least,
        rank=n,
        statement="theorem",
        method=f"closed form: extreme roots of |i-j|; effective rank as at n = {ALL_EIGENVALUES}",
        effective_rank_statement="limit",
        negative=1,
        rank_statement="theorem",
        condition_statement="theorem",
    )


def _one_sided_alibi(slope: float, contexts: Sequence[int], kernel: str) -> KernelPoints:
    """-m (i-j) has two equal singular values m n sqrt((n^2-1)/12); its exp has one, sinh(m n) / sinh(m)."""
    points, skipped = [], []
    for n in contexts:
        if slope * n > 700:
            skipped.append(
                f"exp(bias) at {n} positions leaves the range of float64: unmasked, it rewards the future."
            )
        else:
            top = math.sinh(slope * n) / math.sinh(slope)
            points.append(of_values(Spectrum(np.array([top]), n), "closed form: rank one", rank=1, regular=True))
    logits = (
        of_values(
            Spectrum(slope * n * math.sqrt((n * n - 1) / 12) * np.ones(2), n),
            "closed form: rank two",
            rank=2 if n > 1 else 0,
            regular=n > 1,
        )
        for n in contexts
    )
    return along(kernel, points, logits, skipped=tuple(skipped))


def _two_sided(encoding: Encoding, contexts: Sequence[int], head: int, kernel: str) -> KernelPoints:
    """A bias that depends on both positions has no structure to use: dense, where that is possible."""
    assert encoding.bias is not None
    limit = min(toeplitz.DENSE_LIMIT // 2, math.isqrt(BIASES_AT_ONCE // encoding.bias.heads))
    points: list[Point] = []
    logits: list[Point] = []
    for n in (n for n in contexts if n <= limit):
        table = encoding.bias.table(np.arange(n), np.arange(n))[head]
        shifted = np.exp(table - np.diagonal(table).max())
        for made, matrix in ((points, shifted), (logits, table)):
            values = np.linalg.svd(matrix, compute_uv=False)
            made.append(of_values(Spectrum(values, n), "dense singular values", statement="measured", signed=False))
    skipped = tuple(
        f"{n} positions: this bias is not Toeplitz, and a dense matrix of {n} x {n} ({8 * n * n / 1e9:.2g} GB) is "
        f"refused (limit {limit})."
        for n in contexts
        if n > limit
    )
    return along(kernel.replace("at 0", "largest on the diagonal"), points, logits, skipped=skipped)
