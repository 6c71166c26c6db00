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
OFFSETS_LIMIT = 1_000_000  # entries of the table over offsets, where that is all there is to it
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
    if np.ndim(q) == np.ndim(k) == 2 and (found := _same_everywhere(
        np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64), encoding, positions, weights, key_weights,
        causal, scale, head,
    )):  # fmt: skip
        return found
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
    size = float(np.abs(q_AIR).max() * np.abs(k_BIR).max() * q_AIR.shape[2] + np.abs(bias_IJ).max())
    return _shares(content, position, coupling, position_even, coupling_even, size)


def _shares(
    content: float,
    position: float,
    coupling: float,
    position_even: float | None,
    coupling_even: float | None,
    size: float,
) -> Shares:
    """The parts over their sum; `size` is how large logits can be: what rounding leaves of that is no variance."""
    total = content + position + coupling
    if total <= (64 * np.finfo(np.float64).eps * size) ** 2:
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


def _same_everywhere(
    q_AR: Array,
    k_BR: Array,
    encoding: Encoding,
    positions: ArrayLike | None,
    weights: ArrayLike | None,
    key_weights: ArrayLike | None,
    causal: bool,
    scale: float,
    head: int,
) -> Shares | None:
    """`decompose` where vectors are the same at every position and logits see the offset t = i - j only.

    Then L[a,i,b,j] = l[a,b,t], a table smaller by the number of positions. Of the gauge only m[a,i] remains, the mean
    of l over b and the offsets that i sees. None where offsets are not all that is seen, or the design is too large.
    """
    at_I = None if positions is None else np.asarray(positions, dtype=np.float64)
    offsets = encoding.bias is None or encoding.bias.toeplitz
    if at_I is None or at_I.ndim != 1 or len(at_I) == 0 or not offsets or even_step(at_I) is None:
        return None
    length = len(at_I)
    if len(q_AR) * len(k_BR) * 2 * length > OFFSETS_LIMIT:
        return None
    _design(q_AR[:, None], k_BR[:, None], at_I[:1], causal)  # complains of what is no design
    checked_positions(at_I, length, causal=causal)
    if encoding.bias is not None and not 0 <= head < encoding.bias.heads:
        return None  # the long way complains
    context = int(max(at_I.max(), 0)) + 1
    far_q, near_k = (np.repeat(part[:, None], length, axis=1) for part in (q_AR, k_BR))
    q_AIR, k_BIR = turned(encoding.rotary, far_q, near_k, at_I, head=head, context=context)
    table_ABT = scale * (q_AIR @ k_BIR[:, 0].T).transpose(0, 2, 1)
    at_T = np.arange(length)
    if not causal:  # offsets below 0: the query stands at the first position
        table_ABT = np.concatenate(
            [scale * (q_AIR[:, 0] @ k_BIR[:, :0:-1].swapaxes(1, 2)).swapaxes(0, 1), table_ABT], axis=2
        )
        at_T = np.arange(1 - length, length)
    bias_T = np.zeros(len(at_T))
    if encoding.bias is not None:
        bias_T = encoding.bias.by_offset(at_T * (even_step(at_I) or 1.0))[head]
        table_ABT = table_ABT + bias_T
    weight_A = _weights(weights, len(q_AR))
    weight_B = _weights(weights if key_weights is None else key_weights, len(k_BR))
    from_I = np.arange(length)[:, None] - at_T
    seen_IT = ((from_I >= 0) & (from_I < length)).astype(np.float64)
    seen_I, count_T, pair = seen_IT.sum(axis=1), seen_IT.sum(axis=0), 1 / seen_IT.sum()
    mean_AT = weight_B @ table_ABT
    gauge_AI = mean_AT @ seen_IT.T / seen_I
    middle_T, middle_I = weight_A @ mean_AT, weight_A @ gauge_AI
    content_AB = pair * (table_ABT @ count_T - (gauge_AI @ seen_I)[:, None])
    position_IT = middle_T - middle_I[:, None]
    rest_ABT = table_ABT - content_AB[:, :, None] - middle_T
    own_AI = gauge_AI - middle_I
    # the coupling is rest[a,b,t] - own[a,i]: its spread over b, and what the mean over b leaves
    mean_AT = weight_B @ rest_ABT
    apart_T = weight_A @ (weight_B @ (rest_ABT - mean_AT[:, None]) ** 2)
    left_A = np.einsum("it,ait->a", seen_IT, (mean_AT[:, None] - own_AI[:, :, None]) ** 2)
    even_AT = own_AI @ seen_IT / count_T
    return _shares(
        content=float(weight_A @ content_AB**2 @ weight_B),
        position=pair * float((seen_IT * position_IT**2).sum()),
        coupling=pair * float(count_T @ apart_T + weight_A @ left_A),
        position_even=pair * float(count_T @ (middle_T - middle_I @ seen_IT / count_T) ** 2),
        coupling_even=pair * float(count_T @ (weight_A @ (weight_B @ (rest_ABT - even_AT[:, None]) ** 2))),
        size=float(np.abs(q_AIR).max() * abs(scale) * np.abs(k_BIR).max() * q_AIR.shape[2] + np.abs(bias_T).max()),
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
