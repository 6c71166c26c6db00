"""What rotation does to a head's logit matrix: W_k = scale Q^T R_k K at offset k = j - i.

The thin factor of [Q^T, K^T] is computed once; every offset then costs one eigenvalue problem of size 2r.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Head
from toposcope.core.linalg import thin_r
from toposcope.dynamics.factored import CONDITION
from toposcope.dynamics.reduction import one_eigenvalue, spectral_norm
from toposcope.encodings import Rotary

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RotaryFacts:
    """`rho` = max_k |W_k - W_0| over the sampled offsets; `tau_uniform`: D = tau I with tau above it makes
    sym(W_k) + D positive at every real offset; `lmin_by_offset`: lambda_min(sym W_k) at the sampled offsets."""

    rho: float
    tau_uniform: float
    lmin_by_offset: dict[int, float]


def turned(rotary: Rotary, matrix_RD: Array, position: float, side: str, context: int | None = None) -> Array:
    """R_position M: the rows of a projection, turned as the channels of a vector at that position."""
    at = np.full(len(matrix_RD), float(position))
    turn = rotary.rotate(np.eye(rotary.head_dim), at, side="query" if side == "query" else "key", context=context)
    return turn.T @ matrix_RD


def offsets_to_sample(context: int, *, causal: bool) -> list[int]:
    """0 and the powers of four below the context; backwards only where the mask is causal."""
    steps = [4**n for n in range(int(np.log(max(context - 1, 1)) / np.log(4)) + 1) if 4**n < context]
    return [0, *(-step for step in steps), *([] if causal else steps)]


def rotary_facts(head: Head, rotary: Rotary, offsets: list[int], context: int | None = None) -> RotaryFacts:
    """rho, tau_uniform and lambda_min(sym W_k) of one head with its norms folded in (theory, section 3)."""
    r = len(head.q)
    q = turned(rotary, head.q, 0, "query", context)
    both = np.concatenate([q.T, head.k.T], axis=1)
    upper = thin_r(both, CONDITION)
    t_q, t_k = head.scale * upper[:, :r], upper[:, r:]
    s_q, s_k = thin_r(t_q), thin_r(t_k)  # |T_q X T_k^T| = |S_q X S_k^T|, half as wide
    eye = np.eye(r)
    start = turned(rotary, eye, 0, "key", context)
    rho, least = 0.0, {}
    for offset in offsets:
        turn = turned(rotary, eye, offset, "key", context)
        rho = max(rho, spectral_norm(s_q @ (turn - start) @ s_k.T) if offset else 0.0)
        shifted = t_q @ turn @ t_k.T
        least[offset] = one_eigenvalue((shifted + shifted.T) / 2, 0)
    k = turned(rotary, head.k, 0, "key", context)
    return RotaryFacts(rho, tau_uniform(q, k, rotary, head.scale), least)


def tau_uniform(q_RD: Array, k_RD: Array, rotary: Rotary, scale: float) -> float:
    """The smallest tau this bound gives: scale/2 lambda_max(Q^T L Q + K^T L^-1 K), L = |K_m|/|Q_m| per channel pair.

    For every real offset -x^T W_k x <= scale sum_m |Q_m x||K_m x|, whence sym(W_k) + tau I > 0 for tau above this.
    Channels that do not rotate are pairs of their own.
    """
    energy = np.stack([np.sum(q_RD * q_RD, axis=1), np.sum(k_RD * k_RD, axis=1)])
    first_F, second_F = rotary.pairs_F2[:, 0], rotary.pairs_F2[:, 1]
    energy[:, first_F] = energy[:, second_F] = energy[:, first_F] + energy[:, second_F]
    # a pair with Q_m = 0 or K_m = 0 adds nothing to W_k and is dropped; any positive weights give a valid bound
    alive = (energy > 0).all(axis=0)
    weight = np.where(alive, np.sqrt(energy[1] / np.where(alive, energy[0], 1.0)), 0.0)
    used = weight > 0
    if not used.any():
        return 0.0
    root = np.sqrt(weight[used])[:, None]
    return scale / 2 * spectral_norm(np.concatenate([root * q_RD[used], k_RD[used] / root])) ** 2
