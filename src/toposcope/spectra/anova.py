"""The variance of a head's logits split into content, position and their coupling (section 3.6).

Shape suffixes: A query tokens, B key tokens, I and J positions, R head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.encodings.record import NONE, Encoding
from toposcope.spectra.contraction import checked_positions, even_step, turned
from toposcope.spectra.singular import finite

Array = NDArray[np.float64]

DIRECT_LIMIT = 4_000_000  # entries of the whole table of logits: 32 MB
AT_ONCE = 64  # positions whose second moments are held at a time


@dataclass(frozen=True)
class Shares:
    """What part of the logits' variance comes from content, position and their coupling; the three sum to 1.

    `position_toeplitz` and `coupling_toeplitz` are the parts of these shares that depend on i - j only (never more
    than the shares themselves). `total` is the mean square of the logits after the gauge fix; where it is zero no
    share is defined. A Toeplitz part is None where positions are uneven, or the design too large to be formed.
    """

    content: float | None
    position: float | None
    coupling: float | None
    position_toeplitz: float | None
    coupling_toeplitz: float | None
    total: float


def decompose(
    q: ArrayLike,
    k: ArrayLike,
    encoding: Encoding = NONE,
    positions: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    key_weights: ArrayLike | None = None,
    causal: bool = False,
    scale: float = 1.0,
    head: int = 0,
    direct_limit: int = DIRECT_LIMIT,
) -> Shares:
    """Split the variance of L[a,i,b,j] = scale * rot(q[a,i]) . rot(k[b,j]) + bias into its three orthogonal parts.

    The design is every query token at every position against every key token at every position: `q` is (A, I, R),
    `k` is (B, I, R), both before the head's own encoding acts; (A, R) and (B, R) where the vectors are the same at
    every position (then `positions` says at which). First the softmax gauge is fixed, L <- L - mean_{b,j} L, for
    what depends on the query only is invisible to softmax. Then

        C[a,b] = mean_{ij} L,   P[i,j] = mean_{ab} L,   X = L - C - P,

    (the grand mean is zero after the gauge) and content, position, coupling = ||C||^2, ||P||^2, ||X||^2 over their
    sum. `weights` are token frequencies (uniform by default; `key_weights` where the keys are other tokens);
    `causal` keeps the pairs j <= i, in the means and the norms alike. Beyond `direct_limit` logits the table is not
    formed: ||L||^2 comes from second moments of q and k, and the coupling is what is left.
    """
    encoding.tables()
    q_AIR, k_BIR, at_I = _design(q, k, positions, causal)
    if encoding.bias is not None and not 0 <= head < encoding.bias.heads:
        raise BadValue(f"the encoding has no head {head}: it gives a bias to {encoding.bias.heads}.")
    context = int(max(at_I.max(), 0)) + 1
    q_AIR, k_BIR = turned(encoding.rotary, q_AIR, k_BIR, at_I, head=head, context=context)
    q_AIR = q_AIR * scale
    weight_A = _weights(weights, len(q_AIR))
    weight_B = _weights(weights if key_weights is None else key_weights, len(k_BIR))
    length = len(at_I)
    bias_IJ = np.zeros((length, length)) if encoding.bias is None else encoding.bias.table(at_I, at_I)[head]
    visible_IJ = np.tril(np.ones((length, length))) if causal else np.ones((length, length))
    # gauge: the mean key and the mean bias that query position i sees are taken off
    seen_I = visible_IJ.sum(axis=1, keepdims=True)
    mean_key_IR = visible_IJ @ np.einsum("b,bjr->jr", weight_B, k_BIR) / seen_I
    bias_IJ = bias_IJ - (visible_IJ * bias_IJ).sum(axis=1, keepdims=True) / seen_I
    pair_IJ = visible_IJ / visible_IJ.sum()
    content_AB = _content(q_AIR, k_BIR, mean_key_IR, pair_IJ)
    query_I, key_J = np.einsum("a,air->ir", weight_A, q_AIR), np.einsum("b,bjr->jr", weight_B, k_BIR)
    position_IJ = query_I @ key_J.T - (query_I * mean_key_IR).sum(axis=1, keepdims=True) + bias_IJ
    content = float(weight_A @ content_AB**2 @ weight_B)
    position = float((pair_IJ * position_IJ**2).sum())
    even = even_step(at_I) is not None
    position_even = _toeplitz_norm(position_IJ[None], pair_IJ)[0] if even else None
    coupling_even: float | None = None
    if len(q_AIR) * len(k_BIR) * length**2 <= direct_limit:
        coupling = 0.0
        coupling_even = 0.0 if even else None
        for a, q_IR in enumerate(q_AIR):
            logits_BIJ = q_IR @ k_BIR.swapaxes(1, 2)
            logits_BIJ -= (q_IR * mean_key_IR).sum(axis=1)[:, None]
            rest_BIJ = logits_BIJ + bias_IJ - content_AB[a][:, None, None] - position_IJ
            coupling += float(weight_A[a] * (weight_B @ np.einsum("ij,bij->b", pair_IJ, rest_BIJ**2)))
            if coupling_even is not None:
                coupling_even += float(weight_A[a] * (weight_B @ _toeplitz_norm(rest_BIJ, pair_IJ)))
    else:
        square = _mean_square(q_AIR, k_BIR, mean_key_IR, pair_IJ, weight_A, weight_B)
        token_mean_IJ = position_IJ - bias_IJ
        square += float((pair_IJ * (2 * token_mean_IJ * bias_IJ + bias_IJ**2)).sum())
        coupling = max(0.0, square - content - position)
    # what rounding leaves of parts that cancel is not variance
    size = float(np.abs(q_AIR).max() * np.abs(k_BIR).max() * q_AIR.shape[2] + np.abs(bias_IJ).max())
    floor = (64 * np.finfo(np.float64).eps * size) ** 2
    total = content + position + coupling
    if total <= floor:
        return Shares(None, None, None, None, None, 0.0)
    position_share, coupling_share = position / total, coupling / total
    return Shares(
        content=content / total,
        position=position_share,
        coupling=coupling_share,
        position_toeplitz=None if position_even is None else min(float(position_even) / total, position_share),
        coupling_toeplitz=None if coupling_even is None else min(coupling_even / total, coupling_share),
        total=total,
    )


def _design(q: ArrayLike, k: ArrayLike, positions: ArrayLike | None, causal: bool) -> tuple[Array, Array, Array]:
    """Queries and keys with a row for every token at every position, and the positions."""
    given = [np.asarray(part, dtype=np.float64) for part in (q, k)]
    lengths = {part.shape[1] for part in given if part.ndim == 3}
    if not lengths and positions is not None:
        lengths = {np.asarray(positions).size}
    if len(lengths) != 1:
        raise BadValue(
            "q and k must be (tokens, positions, width) with the same number of positions, or (tokens, width) "
            f"together with the positions; got the shapes {given[0].shape} and {given[1].shape}."
        )
    length = lengths.pop()
    spread = [
        finite(name, np.repeat(part[:, None], length, axis=1) if part.ndim == 2 else part, axes=3)
        for name, part in zip(("q", "k"), given, strict=True)
    ]
    if spread[0].shape[2] != spread[1].shape[2]:
        raise BadValue(f"queries of width {spread[0].shape[2]} cannot meet keys of width {spread[1].shape[2]}.")
    return spread[0], spread[1], checked_positions(positions, length, causal=causal)


def _weights(weights: ArrayLike | None, tokens: int) -> Array:
    if weights is None:
        return np.full(tokens, 1 / tokens)
    given = finite("the token weights", weights, axes=1)
    if len(given) != tokens:
        raise BadValue(f"{len(given)} token weights given for {tokens} tokens.")
    if (given < 0).any() or given.sum() == 0:
        raise BadValue("token weights must not be negative, and not all zero.")
    return np.asarray(given / given.sum())


def _content(q_AIR: Array, k_BIR: Array, mean_key_IR: Array, pair_IJ: Array) -> Array:
    """C[a,b] = sum_ij pair_ij q[a,i] . (k[b,j] - mean key seen from i); the bias has gauge mean zero."""
    summed_BIR = pair_IJ @ k_BIR
    summed_BIR = summed_BIR - pair_IJ.sum(axis=1)[:, None] * mean_key_IR
    return np.asarray(q_AIR.reshape(len(q_AIR), -1) @ summed_BIR.reshape(len(summed_BIR), -1).T)


def _mean_square(
    q_AIR: Array, k_BIR: Array, mean_key_IR: Array, pair_IJ: Array, weight_A: Array, weight_B: Array
) -> float:
    """The mean of (q[a,i] . (k[b,j] - mean key))^2 from second moments: sum (E q q^T) o (E k k^T), per query row."""
    first_row = pair_IJ[:, 0]  # every query sees the first key
    length = len(first_row)
    causal = length > 1 and pair_IJ[0, -1] == 0
    seen = np.arange(1, length + 1) if causal else np.full(length, length)
    total, wide = 0.0, k_BIR.shape[2]
    running = np.zeros((wide, wide)) if causal else _second_moments(k_BIR, weight_B).sum(axis=0)
    for start in range(0, length, AT_ONCE):
        here = slice(start, start + AT_ONCE)
        if causal:
            keys_IRR = running + np.cumsum(_second_moments(k_BIR[:, here], weight_B), axis=0)
            running = keys_IRR[-1]
        else:
            keys_IRR = running
        # the mean key is the mean over what is seen, so the second moment about it is this
        mean_IR = mean_key_IR[here]
        about_IRR = keys_IRR - seen[here, None, None] * mean_IR[:, :, None] * mean_IR[:, None, :]
        products_I = (_second_moments(q_AIR[:, here], weight_A) * about_IRR).sum(axis=(1, 2))
        total += float(first_row[here] @ products_I)
    return total


def _second_moments(x_AIR: Array, weight_A: Array) -> Array:
    """E x x^T at each position, (I, R, R)."""
    x_IAR = x_AIR.transpose(1, 0, 2)
    return np.asarray((x_IAR * weight_A[:, None]).swapaxes(1, 2) @ x_IAR)


def _toeplitz_norm(matrix_BIJ: Array, pair_IJ: Array) -> Array:
    """The mean square of each matrix's part that depends on i - j only: diagonal means under the same weighting."""
    length = matrix_BIJ.shape[1]
    total = np.zeros(len(matrix_BIJ))
    for t in range(-(length - 1), length):
        weight = np.diagonal(pair_IJ, -t)
        mass = weight.sum()
        if mass > 0:
            total += (np.diagonal(matrix_BIJ, -t, axis1=1, axis2=2) @ weight) ** 2 / mass
    return total
