"""The exact reduction of one head's flow to its own r dimensions (T9).

A head acts by U = O V and sees by scale Q^T K. If V~ = V O (r x r) is invertible, R^d splits into range(O) and
null(V): x = O z + nu, nu never moves, and z follows the same kind of flow with

    V~ = V O,    W~ = scale (Q O)^T (K O),

plus terms from nu in the logits. Where O V has rank below r the factors are first compressed to that rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from toposcope.checkpoints.view import Head

Array = NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Reduced:
    """A flow in its own coordinates.

    `v` and `w` are V~ and W~. `v_norm` and `o_norm` are the 2-norms of the factors, by which a relative error of the
    weights is measured; `rounding` is what float64 arithmetic may have put into V~. `frozen`: tokens have
    a part outside range(O); `compressed` whether O V had to be reduced below the stored rank.
    """

    v: Array
    w: Array
    v_norm: float
    o_norm: float
    rounding: float
    frozen: bool
    compressed: bool

    @property
    def rank(self) -> int:
        return len(self.v)


def spectral_norm(matrix: Array) -> float:
    """The 2-norm of a matrix, from the Gram matrix of its shorter side (the largest singular value loses nothing)."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return float(np.sqrt(max(0.0, one_eigenvalue(gram, len(gram) - 1)))) if gram.size else 0.0


def one_eigenvalue(symmetric: Array, index: int) -> float:
    """The eigenvalue with this number, counted from the least."""
    try:
        return float(scipy.linalg.eigvalsh(symmetric, subset_by_index=[index, index])[0])
    except scipy.linalg.LinAlgError:  # LAPACK's search for one can fail very near a multiple of the identity
        return float(scipy.linalg.eigvalsh(symmetric)[index])


def reduce_system(w: Array, v: Array) -> Reduced:
    """A full system given by W and V in d dimensions: O is the identity."""
    return _reduce(v, np.eye(len(v)), lambda o: o.T @ w @ o)


def reduce_head(head: Head) -> Reduced:
    """One head with its norms folded in."""
    return _reduce(head.v, head.o, lambda o: head.scale * (head.q @ o).T @ (head.k @ o))


def reduce_values(v: Array, o: Array) -> Reduced:
    """A layer's O' V', whose heads share no single W: only V~ is formed, W~ is zero."""
    return _reduce(v, o, lambda thin: np.zeros((thin.shape[1], thin.shape[1])))


def _reduce(v: Array, o: Array, logits_in: Callable[[Array], Array]) -> Reduced:
    d, r = o.shape
    v_norm, o_norm = spectral_norm(v), spectral_norm(o)
    rounding = 8 * d * EPS * float(np.linalg.norm(v)) * float(np.linalg.norm(o))
    thin_v, thin_o = thin_factors(v, o)
    # with r > d the rank cannot reach r: at rank d nothing is frozen, and V~ is U in another orthonormal basis
    rank = len(thin_v)
    return Reduced(
        thin_v @ thin_o, logits_in(thin_o), v_norm, o_norm, rounding, frozen=rank < d, compressed=rank < min(d, r)
    )


def thin_factors(v: Array, o: Array) -> tuple[Array, Array]:
    """V and O themselves where O V has the rank of their width; else factors of O V of the rank it has."""
    d, r = o.shape
    if _surely_full(v @ v.T) and _surely_full(o.T @ o):
        return v, o
    # U = O V = (Q_o R_o)(R_v^T Q_v^T): its singular values are those of the small middle.
    q_o, r_o = scipy.linalg.qr(o, mode="economic", check_finite=False)
    q_v, r_v = scipy.linalg.qr(v.T, mode="economic", check_finite=False)
    left, sizes, right = np.linalg.svd(r_o @ r_v.T)
    rank = int(np.sum(sizes > 8 * d * EPS * float(np.linalg.norm(v)) * float(np.linalg.norm(o))))
    return (v, o) if rank == r else (right[:rank] @ q_v.T, q_o @ (left[:, :rank] * sizes[:rank]))


def _surely_full(gram: Array) -> bool:
    """Whether a factor has full rank beyond doubt: its Gram matrix shows condition numbers below 1e5 reliably."""
    values = scipy.linalg.eigvalsh(gram)
    return bool(values[0] > 1e-10 * values[-1])
