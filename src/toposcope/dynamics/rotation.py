"""What rotation does to a head's logit matrix: W_k = scale Q^T R_k K at offset k = j - i.

The thin factor of [Q^T, K^T] is there once; every offset then costs one eigenvalue problem of size 2r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.dynamics.products import Products
from toposcope.dynamics.reduction import one_eigenvalue
from toposcope.encodings import Rotary

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RotaryFacts:
    """`rho` = max_k |W_k - W_0| over the sampled offsets; `tau_uniform`: D = tau I with tau above it makes
    sym(W_k) + D positive at every real offset; `lmin_by_offset`: lambda_min(sym W_k) at the sampled offsets."""

    rho: float
    tau_uniform: float
    lmin_by_offset: dict[int, float]


@dataclass(frozen=True, eq=False)
class Turns:
    """The rotations of keys at some offsets other than 0, after that at offset 0: one stack for all heads."""

    offsets: tuple[int, ...]
    turns_ORR: Array

    @classmethod
    def at(cls, rotary: Rotary, offsets: Sequence[int], context: int | None = None) -> Turns:
        start = _matrix(rotary, 0, "key", context)
        others = tuple(offset for offset in offsets if offset)
        moved = [_matrix(rotary, offset, "key", context) for offset in others]
        stacked = np.stack(moved) if moved else np.empty((0, *start.shape))
        return cls(others, np.linalg.solve(start.T, stacked.transpose(0, 2, 1)).transpose(0, 2, 1))


def turned(rotary: Rotary, matrix_RD: Array, position: float, side: str, context: int | None = None) -> Array:
    """R_position M: the rows of a projection, turned as the channels of a vector at that position."""
    turn = _matrix(rotary, position, side, context)
    sizes = np.diag(turn)
    if np.array_equal(turn, np.diag(sizes)):  # at offset 0 all that is left is the attention factor
        return matrix_RD if (sizes == 1).all() else sizes[:, None] * matrix_RD
    return turn @ matrix_RD


def _matrix(rotary: Rotary, position: float, side: str, context: int | None) -> Array:
    at = np.full(rotary.head_dim, float(position))
    turn = rotary.rotate(np.eye(rotary.head_dim), at, side="query" if side == "query" else "key", context=context)
    return np.ascontiguousarray(turn.T)


def offsets_to_sample(context: int, *, causal: bool) -> list[int]:
    """0 and the powers of four below the context; backwards only where the mask is causal."""
    steps = [4**n for n in range(int(np.log(max(context - 1, 1)) / np.log(4)) + 1) if 4**n < context]
    return [0, *(-step for step in steps), *([] if causal else steps)]


def rotary_facts(products: Products, rotary: Rotary, turns: Turns) -> RotaryFacts:
    """rho, tau_uniform and lambda_min(sym W_k) of one head (theory, section 3).

    The products are those of the head as it is at offset 0, with its norms folded in.
    """
    scale, upper = products.head.scale, products.logits_triangle
    r = len(products.head.q)
    s_q, t_k = scale * upper[:r, :r], upper[:, r:]  # the triangle has nothing of Q below its first r rows
    turned_ORR = s_q @ turns.turns_ORR
    moved_ORR = (turned_ORR - s_q) @ products.key_triangle.T  # |T_q X T_k^T| = |S_q X S_k^T|, half as wide
    halves_ORS = turned_ORR @ t_k.T / 2
    symmetric_OSS = np.zeros((len(turns.offsets), len(upper), len(upper)))
    symmetric_OSS[:, :r] = halves_ORS
    symmetric_OSS[:, :, :r] += halves_ORS.transpose(0, 2, 1)
    found = {0: scale * float(products.logits_eigenvalues[0])}
    found |= {offset: one_eigenvalue(each, 0) for offset, each in zip(turns.offsets, symmetric_OSS, strict=True)}
    return RotaryFacts(_largest_norm(moved_ORR), _tau(products.logits, rotary, scale), found)


def _largest_norm(matrices_ORR: Array) -> float:
    """The largest 2-norm among several matrices; most are ruled out by bounds, and only the others are solved.

    With G = A A^T over its trace, |G| lies between the Rayleigh quotient of any vector and (tr G^8)^(1/8), at most
    r^(1/8) too large.
    """
    squares = matrices_ORR @ matrices_ORR.transpose(0, 2, 1)
    traces = np.trace(squares, axis1=1, axis2=2)
    alive = traces > 0
    if not alive.any():
        return 0.0
    squares, traces = squares[alive], traces[alive]
    unit = squares / traces[:, None, None]
    fourth = unit @ unit
    fourth = fourth @ fourth
    above = traces * np.einsum("ors,ors->o", fourth, fourth) ** (1 / 8)
    longest = np.linalg.norm(fourth, axis=1).argmax(axis=1)
    vectors = np.take_along_axis(fourth, longest[:, None, None], axis=2)[..., 0]
    quotients = np.einsum("or,ors,os->o", vectors, unit, vectors) / np.einsum("or,or->o", vectors, vectors)
    best = float((traces * quotients).max())
    for i in np.argsort(-above):
        if above[i] * (1 + 1e-9) < best:
            break
        best = max(best, one_eigenvalue(squares[i], squares.shape[1] - 1))
    return float(np.sqrt(best))


def tau_uniform(q_RD: Array, k_RD: Array, rotary: Rotary, scale: float) -> float:
    """The smallest tau this bound gives: scale/2 lambda_max(Q^T L Q + K^T L^-1 K), L = |K_m|/|Q_m| per channel pair.

    For every real offset -x^T W_k x <= scale sum_m |Q_m x||K_m x|, whence sym(W_k) + tau I > 0 for tau above this.
    Channels that do not rotate are pairs of their own.
    """
    both = np.concatenate([q_RD, k_RD])
    return _tau(both @ both.T, rotary, scale)


def _tau(gram_SS: Array, rotary: Rotary, scale: float) -> float:
    """`tau_uniform` from the Gram matrix of [Q^T, K^T]."""
    energy = np.diag(gram_SS).reshape(2, -1).copy()
    first_F, second_F = rotary.pairs_F2[:, 0], rotary.pairs_F2[:, 1]
    energy[:, first_F] = energy[:, second_F] = energy[:, first_F] + energy[:, second_F]
    # a pair with Q_m = 0 or K_m = 0 adds nothing to W_k and is dropped; any positive weights give a valid bound
    alive = (energy > 0).all(axis=0)
    weight = np.where(alive, np.sqrt(energy[1] / np.where(alive, energy[0], 1.0)), 0.0)
    used = weight > 0
    if not used.any():
        return 0.0
    root = np.sqrt(weight[used])
    sizes, both = np.concatenate([root, 1 / root]), np.concatenate([used, used])
    scaled = gram_SS[np.ix_(both, both)] * np.outer(sizes, sizes)
    return scale / 2 * max(0.0, one_eigenvalue(scaled, len(scaled) - 1))
