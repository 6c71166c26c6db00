"""The random baseline of a head: the same spectra, random orientation.

Each factor keeps its Gram matrix (so its singular values, and how its own channels relate) but reads or writes a
random subspace of the residual stream, independently of the others. What a real head shows beyond it comes
from how its factors are turned towards each other: that is what training did.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from toposcope.checkpoints.view import Head

Array = NDArray[np.float64]


def randomised(head: Head, random: np.random.Generator) -> Head:
    """The head with each of Q, K, V, O turned to a random subspace of the residual stream."""
    return replace(
        head,
        q=_turned(head.q, random),
        k=_turned(head.k, random),
        v=_turned(head.v, random),
        o=_turned(head.o.T, random).T,
    )


def _turned(rows: Array, random: np.random.Generator) -> Array:
    """A matrix with the same Gram matrix of rows, whose row space is uniformly random."""
    r, d = rows.shape
    lower = scipy.linalg.qr(rows.T, mode="economic", check_finite=False)[1].T
    basis, upper = scipy.linalg.qr(random.standard_normal((d, r)), mode="economic", check_finite=False)
    # Householder's signs prefer one side; with those of the diagonal taken out the basis is uniformly distributed
    return lower @ (basis * np.sign(np.diag(upper))).T
