"""Any Toeplitz kernel without a closed form, at every context: dense, by Lanczos, or between two circulants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from toposcope.spectra import toeplitz
from toposcope.spectra.points import Point, Statement, of_values
from toposcope.spectra.singular import effective_rank
from toposcope.spectra.toeplitz import Spectrum

Array = NDArray[np.float64]
LANCZOS_LIMIT = 2**17  # beyond it only bounds are computed
LAGS_LIMIT = 2**22  # at it about a minute, beyond it hours


def toeplitz_points(lags: Array, contexts: Sequence[int], *, positive: bool) -> Iterator[Point]:
    """Any Toeplitz matrix, from the lags of the longest context; `positive`: known to be positive semidefinite.

    Dense to 2048, Lanczos to 2^17, beyond it, or where they are within a thousandth, bounds alone. Beyond 2048 the
    effective rank is that of the optimal circulant: a theorem ("at most") for positive matrices, for others an
    estimate that is given only where it is within a tenth of the dense one at n = 2048.
    """
    longest = (len(lags) + 1) // 2
    symmetric = bool(np.array_equal(lags, lags[::-1]))

    def cut(n: int) -> Array:
        return lags[longest - n : longest + n - 1]

    def dense(n: int) -> Spectrum:
        return Spectrum(toeplitz.dense_singular_values(cut(n)), n)

    checked: float | None = None  # the dense effective rank at the limit
    words = "at most"
    for n in contexts:
        if n <= toeplitz.DENSE_LIMIT:
            found = dense(n)
            checked = found.effective_rank if n == toeplitz.DENSE_LIMIT else None
            yield of_values(found, "dense eigenvalues", statement="measured", signed=symmetric)
            continue
        rank = effective_rank(np.abs(toeplitz.optimal_circulant(cut(n))))
        if not positive:
            if checked is None:
                checked = dense(toeplitz.DENSE_LIMIT).effective_rank or 0.0
            guess = effective_rank(np.abs(toeplitz.optimal_circulant(cut(toeplitz.DENSE_LIMIT)))) or 0.0
            near = abs(guess - checked) <= 0.1 * checked
            rank, words = (rank, "estimate") if near else (None, "not computed")
        yield _long(cut(n), rank, words)


def _long(lags: Array, rank: float | None, words: str) -> Point:
    n = (len(lags) + 1) // 2
    below, above = toeplitz.norm_bounds(lags)
    statement: Statement = "bound"
    residual, top, method = None, below, "circulants inside and outside; the lower bound is shown"
    if n <= LANCZOS_LIMIT and above > 1.001 * below:
        found = toeplitz.top_singular_value(lags)
        if found.value >= below * (1 - 1e-9):  # Lanczos has reached what is known to be there
            residual, top, statement = found.residual, found.value, "measured"
            method = "Lanczos" if found.converged else "Lanczos, stopped early"
    return Point(
        context=n,
        lambda_max_over_n=top / n,
        effective_rank=rank,
        condition=None,
        rank=None,
        statement=statement,
        method=method if rank is None else f"{method}; effective rank of the optimal circulant",
        residual=residual,
        effective_rank_statement=words,
        lower=below / n,
        upper=above / n,
    )
