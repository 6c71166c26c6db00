"""The exact reduction of one head's flow to its own r dimensions (T9).

A head acts by U = O V and sees by scale Q^T K. If V~ = V O (r x r) is invertible, R^d splits into range(O) and
null(V): x = O z + nu, nu never moves, and z follows the same kind of flow with

    V~ = V O,    W~ = scale (Q O)^T (K O),

plus terms from nu in the logits. Only what is zero by structure is left out beforehand: rows of V and columns of O
that are zero, what lies beyond the model's width, and the direction that LayerNorm's centring takes from every token.
A singular value that is merely small stays in: with non-normal factors an eigenvalue of any size can hide behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from numpy.typing import NDArray
from scipy.linalg import lapack

from toposcope.checkpoints.view import Head
from toposcope.dynamics.products import Products

Array = NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)
WIDE = 256  # from this size on a largest eigenvalue is bounded, not computed


@dataclass(frozen=True, eq=False)
class Reduced:
    """A flow in its own coordinates.

    `v` and `w` are V~ and W~, `o` is the basis they are written in (x = o z). `v_norm` and `o_norm` are the 2-norms
    of the factors, by which a relative error of the weights is measured; `rounding` bounds what float64 arithmetic
    may have put into V~. `frozen`: tokens have a part outside range(o); `compressed`: zero rows of V or zero columns
    of O were left out. `moved_by` is what a reader calls V~: "V O", or "V" where there is no O.
    """

    v: Array
    w: Array
    o: Array
    v_norm: float
    o_norm: float
    rounding: float
    frozen: bool
    compressed: bool
    moved_by: str = "V O"

    @property
    def rank(self) -> int:
        return len(self.v)


def spectral_norm(matrix: Array) -> float:
    """The 2-norm of a matrix, from the Gram matrix of its shorter side (the largest singular value loses nothing)."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return float(np.sqrt(_largest(gram))) if gram.size else 0.0


def _largest(gram: Array) -> float:
    """The largest eigenvalue of a positive matrix; of a wide one a proven bound that is 1e-5 too large at most.

    Lanczos comes upon the value, a Cholesky factorisation proves that nothing is above: far cheaper than to solve.
    """
    size = len(gram)
    if size < WIDE or not gram.any():
        return max(0.0, one_eigenvalue(gram, size - 1))
    start = np.random.default_rng(0).standard_normal(size)
    for tolerance in (1e-3, 1e-6):  # a value that is found to 1e-3 is most often right to far more
        try:
            found = scipy.sparse.linalg.eigsh(
                gram, k=1, v0=start, tol=tolerance, maxiter=300, return_eigenvectors=False
            )
        except scipy.sparse.linalg.ArpackError:
            break
        bound = float(found[0]) * (1 + 1e-5)
        room = 4 * size * EPS * (size * bound)  # Rump 2006: twice what may hide below a trace of n |G|
        rest = np.negative(gram)
        rest[np.diag_indices(size)] += bound - room
        if lapack.dpotrf(rest.T, lower=1, clean=0, overwrite_a=1)[1] == 0:
            return bound
    return max(0.0, one_eigenvalue(gram, size - 1))


def one_eigenvalue(symmetric: Array, index: int) -> float:
    """The eigenvalue with this number, counted from the least."""
    found, _, _, _, failed = lapack.dsyevr(symmetric, compute_v=0, range="I", il=index + 1, iu=index + 1)
    if failed:  # LAPACK's search for one can fail very near a multiple of the identity
        return float(scipy.linalg.eigvalsh(symmetric)[index])
    return float(found[0])


def reduce_system(w: Array, v: Array) -> Reduced:
    """A full system given by W and V in d dimensions: O is the identity, and no product is rounded."""
    rounding = 8 * len(v) * EPS * float(np.linalg.norm(v))
    found = _structural(v, np.eye(len(v)), lambda o: o.T @ w @ o, spectral_norm(v), 1.0, rounding)
    return replace(found, moved_by="V")


def reduce_head(head: Head, *, centred: bool = False, products: Products | None = None) -> Reduced:
    """One head with its norms folded in; `centred` where that is a LayerNorm, past which no token's mean is seen.

    With its `products` nothing is multiplied again, unless O V itself is to be looked at.
    """
    if products is not None and len(head.v) < len(head.o) and head.v.any(axis=1).all() and head.o.any(axis=0).all():
        sizes = [(np.sqrt(_largest(gram)), np.sqrt(np.trace(gram))) for gram in (products.vv, products.oo)]
        (v_norm, v_frobenius), (o_norm, o_frobenius) = sizes
        return Reduced(
            products.vo,
            head.scale * products.qo.T @ products.ko,
            head.o,
            float(v_norm),
            float(o_norm),
            8 * len(head.o) * EPS * float(v_frobenius * o_frobenius),
            frozen=True,
            compressed=False,
        )
    if centred and len(head.v) >= len(head.o):
        head = replace(head, q=_off_mean(head.q), k=_off_mean(head.k), v=_off_mean(head.v), o=_off_mean(head.o.T).T)

    def logits_in(o: Array) -> Array:
        return head.scale * (head.q @ o).T @ (head.k @ o)

    return _reduce(head.v, head.o, logits_in, factor_size(head.o), whole=len(head.v) > len(head.o))


def reduce_values(v: Array, o: Array, *, o_size: tuple[float, float] | None = None, centred: bool = False) -> Reduced:
    """A layer's O' V', whose heads share no single W: only V~ is formed, W~ is zero.

    `o_size` is the `factor_size` that errors of the outputs are measured by, where O' is a sum of them.
    """
    if centred and len(v) >= len(o):
        v, o = _off_mean(v), _off_mean(o.T).T
    return _reduce(v, o, _no_logits, o_size or factor_size(o), whole=len(v) >= len(o))


def factor_size(matrix: Array) -> tuple[float, float]:
    """The 2-norm and the Frobenius norm."""
    return spectral_norm(matrix), float(np.linalg.norm(matrix))


def numerical_rank(v: Array, o: Array) -> int:
    """The number of singular values of O V above rounding."""
    return len(thin_factors(v, o)[0])


def thin_factors(v: Array, o: Array) -> tuple[Array, Array]:
    """V and O themselves where O V has the rank of their width; else factors of O V of its numerical rank.

    What this drops is small and not known to be zero: good for a picture of the flow, not for a verdict on it.
    """
    r = o.shape[1]
    if _surely_full(v @ v.T) and _surely_full(o.T @ o):
        return v, o
    # U = O V = (Q_o R_o)(R_v^T Q_v^T): its singular values are those of the small middle.
    q_o, r_o = scipy.linalg.qr(o, mode="economic", check_finite=False)
    q_v, r_v = scipy.linalg.qr(v.T, mode="economic", check_finite=False)
    left, sizes, right = np.linalg.svd(r_o @ r_v.T)
    rank = int(np.sum(sizes > _rounding(v, o, float(np.linalg.norm(o)))))
    return (v, o) if rank == r else (right[:rank] @ q_v.T, q_o @ (left[:, :rank] * sizes[:rank]))


def _no_logits(o: Array) -> Array:
    return np.zeros((o.shape[1], o.shape[1]))


def _reduce(
    v: Array, o: Array, logits_in: Callable[[Array], Array], o_size: tuple[float, float], *, whole: bool
) -> Reduced:
    """`whole`: not V O but O V itself is looked at, because V has as many rows as the model is wide, or more."""
    o_norm, o_frobenius = o_size
    v_norm, rounding = spectral_norm(v), _rounding(v, o, o_frobenius)
    if whole:
        v, o = o @ v, np.eye(len(o))
    return _structural(v, o, logits_in, v_norm, o_norm, rounding)


def _structural(
    v: Array, o: Array, logits_in: Callable[[Array], Array], v_norm: float, o_norm: float, rounding: float
) -> Reduced:
    """Leave out the products of a zero row of V or a zero column of O, and form V~ and W~ of the rest."""
    kept = v.any(axis=1) & o.any(axis=0)
    compressed = not kept.all()
    if compressed:
        v, o = v[kept], o[:, kept]
    return Reduced(v @ o, logits_in(o), o, v_norm, o_norm, rounding, frozen=len(v) < len(o), compressed=compressed)


def _rounding(v: Array, o: Array, o_frobenius: float) -> float:
    """A bound for the error of V O or O V in float64, with room for what folding and reflecting did before."""
    return 8 * max(o.shape) * EPS * float(np.linalg.norm(v)) * o_frobenius


def _off_mean(rows: Array) -> Array:
    """Rows (any, d) in an orthonormal basis of the d - 1 directions that a mean over coordinates does not see.

    The reflection that takes the ones vector to the first axis is applied, and that axis left out.
    """
    d = rows.shape[1]
    normal = np.full(d, 1 / np.sqrt(d))
    normal[0] += 1.0  # the sign that cannot cancel
    return (rows - np.outer(rows @ normal, 2 / (normal @ normal) * normal))[:, 1:]


def _surely_full(gram: Array) -> bool:
    """Whether a factor has full rank beyond doubt: its Gram matrix shows condition numbers below 1e5 reliably."""
    values = scipy.linalg.eigvalsh(gram)
    return bool(values[0] > 1e-10 * values[-1])
