"""Contraction metrics (3.1, 3.2, 3.4, 3.8) of a running head: windows, and positions that came with the input.

Where position acts inside the head and no window limits what is seen, this is `spectra.contraction`. Position that
was added to the input cannot be switched off inside a head: there S_0 is the product of queries and keys without
their position mean (section 3.6; `collect.PositionPart`). A window hides the same entries on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import NONE, Encoding, LogitBias
from toposcope.spectra.contraction import Contraction, contraction, singular_values, turned
from toposcope.spectra.operators import Operator, causal_product, product, toeplitz, top_singular_values
from toposcope.spectra.singular import effective_rank, majorisation_gap

Array = NDArray[np.float64]
DENSE_LIMIT = 512  # a dense spectrum takes 0.1 s at 512 tokens, 5 s at 2048: per head and sequence


@dataclass(frozen=True)
class Contracted:
    """The metrics of one head on one sequence; `route` says how, `reason` why one is missing."""

    rho: float | None
    erank_ratio: float | None
    maj_gap: float | None
    cap: float | None
    route: str
    reason: str | None


@dataclass(frozen=True, eq=False)
class _Side:
    """One side of the comparison: its norm, and all singular values where they were computed."""

    norm: float
    values: Array | None
    route: str
    reason: str | None


def contracted(
    q_NR: Array,
    k_NR: Array,
    encoding: Encoding,
    *,
    causal: bool,
    reach: int | None,
    scale: float,
    head: int,
    dense_limit: int = DENSE_LIMIT,
) -> Contracted:
    """S with the encoding in force against S_0 with it switched off inside the head, both masked alike."""
    if reach is None:
        found = contraction(
            q_NR, k_NR, encoding, causal=causal, scale=scale, head=head, dense_limit=dense_limit
        )  # fmt: skip
        return Contracted(found.rho, found.erank_ratio, found.maj_gap, found.cap, found.route, _short(found))
    at_N = np.arange(len(q_NR), dtype=np.float64)
    turns = [turned(encoding.rotary, q_NR, k_NR, where, head=head, context=len(q_NR)) for where in (at_N, 0 * at_N)]
    window = (causal, reach, dense_limit)
    with_position = _windowed(turns[0][0] * scale, turns[0][1], encoding.bias, head, window)
    without = _windowed(turns[1][0] * scale, turns[1][1], None, head, window)
    bound = _pairs_bound(q_NR * scale, k_NR, encoding, head)
    if encoding.bias is not None:
        bound += _windowed(0 * q_NR, k_NR, encoding.bias, head, window).norm
    return _set_beside(with_position, without, bound)


def contracted_absolute(
    q_NR: Array,
    k_NR: Array,
    rest_q_NR: Array,
    rest_k_NR: Array,
    *,
    causal: bool,
    reach: int | None,
    dense_limit: int = DENSE_LIMIT,
) -> Contracted:
    """S = q k^T as it is against S_0 of the same queries and keys without their position mean."""

    def side(q: Array, k: Array) -> _Side:
        if reach is not None:
            return _windowed(q, k, None, 0, (causal, reach, dense_limit))
        one = contraction(q, k, NONE, causal=causal, dense_limit=dense_limit)
        return _Side(one.norm, one.values, one.route, _short(one))

    return _set_beside(side(q_NR, k_NR), side(rest_q_NR, rest_k_NR), _pairs_bound(q_NR, k_NR, NONE, 0))


# -------------------------------------------------------------------- inside
def _set_beside(with_position: _Side, without: _Side, bound: float) -> Contracted:
    norm, norm_0 = with_position.norm, without.norm
    ratio = gap = None
    if with_position.values is not None and without.values is not None:
        rank, rank_0 = effective_rank(with_position.values), effective_rank(without.values)
        ratio = None if rank is None or rank_0 is None else rank / rank_0
        gap = majorisation_gap(with_position.values, without.values)
    return Contracted(
        rho=norm / norm_0 if norm_0 else None,
        erank_ratio=ratio,
        maj_gap=gap,
        cap=bound / norm if norm else None,
        route=with_position.route,
        reason=with_position.reason if norm_0 else "the logits without position are zero",
    )


def _short(found: Contraction) -> str | None:
    if found.route == "lanczos":
        return _only_norms(found.positions)
    return None if found.reason is None else "the logits without position are zero"


def _only_norms(length: int) -> str:
    return f"at {length} tokens only norms are found (Lanczos); raise the dense limit for all singular values"


def _pairs_bound(q_NR: Array, k_NR: Array, encoding: Encoding, head: int) -> float:
    """sum_f ||z^f|| ||w^f||: it bounds masked logits too, as masks do not add to the norm of a rank-one part."""
    inside = replace(encoding, bias=None, input=None)
    found = contraction(q_NR, k_NR, inside, head=head, route="factors")
    return 0.0 if found.cap is None else found.cap * found.norm


def _windowed(q_NR: Array, k_NR: Array, bias: LogitBias | None, head: int, window: tuple[bool, int, int]) -> _Side:
    causal, reach, dense_limit = window
    length = len(q_NR)
    if length <= dense_limit:
        at = np.arange(length)
        offset_NN = at[:, None] - at
        logits_NN = q_NR @ k_NR.T
        if bias is not None:
            logits_NN = logits_NN + bias.table(at, at)[head]
        seen_NN = (np.abs(offset_NN) <= reach) & ((offset_NN >= 0) | (not causal))
        values = singular_values(np.where(seen_NN, logits_NN, 0.0))
        return _Side(float(values[0]), values, "dense", None)
    operator = band_product(q_NR, k_NR, causal=causal, reach=reach)
    if bias is not None:
        offset_T = np.arange(1 - length, length)
        entries_T = np.where(np.abs(offset_T) <= reach, bias.by_offset(offset_T)[head], 0.0)
        operator = operator + toeplitz(entries_T, length, length, causal=causal)
    return _Side(float(top_singular_values(operator, 1).values[0]), None, "lanczos", _only_norms(length))


def band_product(q_NR: Array, k_NR: Array, *, causal: bool, reach: int) -> Operator:
    """Q K^T where |i - j| <= reach (causal: and j <= i), as an operator: what is too far is taken off again."""
    length, far = len(q_NR), reach + 1
    whole = causal_product(q_NR, k_NR) if causal else product(q_NR, k_NR)
    past = causal_product(q_NR[far:], k_NR[:-far])  # rows i >= far over columns j <= i - far
    future = None if causal else causal_product(k_NR[far:], q_NR[:-far])  # its transpose: j >= i + far

    def times(x: Array) -> Array:
        y = whole.times(x)
        y[far:] -= past.times(x[: length - far])
        if future is not None:
            y[: length - far] -= future.times_transposed(x[far:])
        return y

    def times_transposed(y: Array) -> Array:
        x = whole.times_transposed(y)
        x[: length - far] -= past.times_transposed(y[far:])
        if future is not None:
            x[far:] -= future.times(y[: length - far])
        return x

    return Operator((length, length), times, times_transposed)
