"""How much diagonal makes every rotated logit matrix positive (theory, section 3).

Under RoPE the logit of offset k is x_i^T W_k x_j with W_k = scale Q^T R_k K. For every real offset

    -x^T W_k x <= scale sum_m |Q_m x| |K_m x| <= (scale / 2) x^T (Q^T L Q + K^T L^-1 K) x,     L = diag(s_m I_2) > 0,

over the channel pairs m, so sym(W_k) + tau I is positive for all k once tau exceeds half of scale times the largest
eigenvalue of that form. s_m = |K_m| / |Q_m| balances the two terms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toposcope.dynamics.fields import System

Array = NDArray[np.float64]


def uniform_diagonal(q: Array, k: Array, scale: float, pairs: NDArray[np.intp], factor: float = 1.0) -> float:
    """The bound tau: sym(W_k) + tau I is non-negative for every offset k, `q` and `k` being (r, d).

    `pairs` lists the rotating channel pairs and `factor` is the attention factor on them (it enters twice); channels
    in no pair stand alone.
    """
    blocks = [np.asarray(pair) for pair in pairs]
    alone = np.setdiff1d(np.arange(len(q)), np.asarray(pairs).ravel())
    blocks += [np.array([channel]) for channel in alone]
    rows: list[Array] = []
    for block in blocks:
        size = factor if len(block) == 2 else 1.0
        q_m, k_m = size * q[block], size * k[block]
        q_size, k_size = float(np.linalg.norm(q_m, 2)), float(np.linalg.norm(k_m, 2))
        if q_size == 0 or k_size == 0:
            continue  # this pair adds nothing to any logit
        balance = k_size / q_size
        rows += [np.sqrt(balance) * q_m, k_m / np.sqrt(balance)]
    return 0.5 * scale * float(np.linalg.norm(np.concatenate(rows), 2)) ** 2 if rows else 0.0


def automatic_diagonal(system: System) -> float:
    """The smallest tau these rules give that makes every head's sym(W_k) + tau I positive, with a thousandth to spare.

    Without rotation that is -lambda_min(sym W) where W is known as a matrix; with it the uniform bound.
    """
    found = 0.0
    repeat = system.heads // len(system.k_GRD)
    for h in range(system.heads):
        q = np.eye(system.width) if system.q_HRD is None else system.q_HRD[h]
        k = system.k_GRD[h // repeat]
        turns = system.rotary is not None and (system.turning is None or h < system.turning)
        if turns and system.rotary is not None:
            tau = uniform_diagonal(q, k, system.scale, system.rotary.pairs_F2, system.rotary.attention_factor)
        else:
            W = system.scale * q.T @ k
            tau = max(0.0, -float(np.linalg.eigvalsh((W + W.T) / 2)[0]))
        found = max(found, tau)
    return 1.001 * found
