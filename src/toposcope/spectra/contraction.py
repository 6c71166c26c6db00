"""What an encoding does to the spectrum of one head's logits: metrics 3.1 to 3.4 and 3.8 of the theory.

S are the logits with the encoding, S_0 those with it switched off inside the head (rotation at position 0, no bias).
Both are masked alike (S6). Shape suffixes: N positions, R head width, T offsets, F channel pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.encodings.record import Encoding, LogitBias, Rotary
from toposcope.spectra.operators import (
    Operator,
    TopValues,
    biased,
    causal_biased,
    causal_product,
    product,
    toeplitz,
    top_singular_values,
)
from toposcope.spectra.singular import (
    effective_rank,
    factors,
    finite,
    majorisation_gap,
    numerical_rank,
    product_singular_values,
    stable_rank,
)

Array = NDArray[np.float64]
Route = Literal["auto", "factors", "dense", "lanczos"]

DENSE_LIMIT = 2048
MAJORISATION_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Contraction:
    """How the spectrum of the logits S compares with that of the same content without position, S_0.

    * `rho` = ||S||_2 / ||S_0||_2: below 1, the encoding contracts.
    * `erank_ratio`: effective rank of S over that of S_0; above 1, it spreads. `stable_rank` likewise, both sides.
    * `cond_r` = s_1 / s_r of S with r the numerical rank of S_0 (`rank_reference`); `cond_r_reference` of S_0.
    * `maj_gap` at most 0 (`maj_ok`: at most 1e-9): every Ky Fan norm contracts.
    * `cap` = (sum_f ||z^f|| ||w^f|| + ||B||_2) / ||S||_2, never below 1 (S5f).

    A metric that is not defined (S_0 = 0, say) or not computed on this route is None; `reason` says why.
    `residual` is that of Lanczos, relative to the norm; None on the exact routes.
    """

    positions: int
    causal: bool
    route: str
    norm: float
    norm_reference: float
    rho: float | None
    erank: float | None
    erank_reference: float | None
    erank_ratio: float | None
    stable_rank: float | None
    stable_rank_reference: float | None
    rank_reference: int | None
    cond_r: float | None
    cond_r_reference: float | None
    maj_gap: float | None
    maj_ok: bool | None
    cap: float | None
    values: Array | None
    values_reference: Array | None
    residual: float | None = None
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class Sides:
    """The two sides before any product is formed: turned and unturned factors, scaled, and the bias."""

    q_NR: Array
    k_NR: Array
    q0_NR: Array
    k0_NR: Array
    entries_T: Array | None
    bias_NN: Array | None
    pairs_bound: float
    pairs_bound_reference: float
    causal: bool


def contraction(
    q: ArrayLike,
    k: ArrayLike,
    encoding: Encoding,
    positions: ArrayLike | None = None,
    *,
    causal: bool = False,
    scale: float = 1.0,
    head: int = 0,
    route: Route = "auto",
    dense_limit: int = DENSE_LIMIT,
) -> Contraction:
    """Compare one head's logits with the encoding in force and switched off; see `Contraction` for the metrics.

    S = scale * rot(q) rot(k)^T + B against S_0 = scale * q k^T, both under the same mask. `q` and `k` are the
    head's queries and keys before position acts, a row per position (0, 1, 2, ... by default).

    Routes: `factors` is exact at any length for unmasked logits without bias (rank <= h); `dense` forms the n x n
    matrices, up to `dense_limit` positions; `lanczos` finds the norms only, at any length, with its residual.
    `auto` takes the first of these that applies.
    """
    return compared(both_sides(q, k, encoding, positions, causal=causal, scale=scale, head=head), route, dense_limit)


def both_sides(
    q: ArrayLike,
    k: ArrayLike,
    encoding: Encoding,
    positions: ArrayLike | None = None,
    *,
    causal: bool = False,
    scale: float = 1.0,
    head: int = 0,
) -> Sides:
    """What a comparison is made of; see `contraction`."""
    q_NR, k_NR = factors(q, k)
    if len(q_NR) != len(k_NR):
        raise BadValue(f"{len(q_NR)} queries and {len(k_NR)} keys: give one of each per position.")
    if not np.isfinite(scale):
        raise BadValue(f"the scale must be finite, got {scale}.")
    checked_head(encoding, head)
    at_N = checked_positions(positions, len(q_NR), causal=causal)
    context = int(max(at_N.max(), 0)) + 1
    rotary, bias = encoding.rotary, encoding.bias
    turned_q, turned_k = turned(rotary, q_NR, k_NR, at_N, head=head, context=context)
    plain_q, plain_k = q_NR, k_NR
    if rotary is not None and rotary.attention_factor != 1.0:
        plain_q, plain_k = turned(rotary, q_NR, k_NR, np.zeros_like(at_N), head=head, context=context)
    entries_T, bias_NN = _bias(bias, at_N, head)
    # the pairs' sizes at their positions: xPos makes them grow and shrink, a plain rotation does not
    bounds = [_pairs_bound(rotary, *both) for both in ((turned_q, turned_k), (plain_q, plain_k))]
    return Sides(
        q_NR=turned_q * scale,
        k_NR=turned_k,
        q0_NR=plain_q * scale,
        k0_NR=plain_k,
        entries_T=entries_T,
        bias_NN=bias_NN,
        pairs_bound=bounds[0] * abs(scale),
        pairs_bound_reference=bounds[1] * abs(scale),
        causal=causal,
    )


def compared(sides: Sides, route: Route = "auto", dense_limit: int = DENSE_LIMIT) -> Contraction:
    """The metrics of two sides."""
    length, causal = len(sides.q_NR), sides.causal
    low_rank = not causal and sides.entries_T is None and sides.bias_NN is None
    if route not in get_args(Route):
        raise BadValue(f"'{route}' is no route. {did_you_mean(str(route), get_args(Route))}")
    if route == "auto":
        route = "factors" if low_rank else "dense" if length <= dense_limit else "lanczos"
    if route == "factors":
        if not low_rank:
            raise BadValue("a mask or a bias makes the logits full rank: take the route 'dense' or 'lanczos'.")
        spectra = [product_singular_values(*both) for both in _factors(sides)]
        return _from_values(sides, *spectra, bias_norm=0.0, route=route)
    if route == "dense":
        if length > dense_limit:
            raise BadValue(
                f"dense logits of {length} positions are {length**2 * 8 / 2**30:.1f} GiB a matrix, beyond the limit "
                f"of {dense_limit} positions. Take the route 'auto', or raise dense_limit."
            )
        logits_NN, logits0_NN = (_masked(q_NR @ k_NR.T, causal) for q_NR, k_NR in _factors(sides))
        bias_NN = _bias_table(sides)
        bias_norm = 0.0
        if bias_NN is not None:
            bias_NN = _masked(bias_NN, causal)
            logits_NN = logits_NN + bias_NN
            bias_norm = float(singular_values(bias_NN)[0])
        spectra = [singular_values(logits_NN), singular_values(logits0_NN)]
        return _from_values(sides, *spectra, bias_norm=bias_norm, route=route)
    return _by_lanczos(sides)


def turned(
    rotary: Rotary | None, q_NR: Array, k_NR: Array, at_N: Array, *, head: int, context: int
) -> tuple[Array, Array]:
    """Queries and keys as the head turns them at these positions; unturned where the head does not turn."""
    if rotary is None or (rotary.turning_heads is not None and head >= rotary.turning_heads):
        return q_NR, k_NR
    return (
        rotary.rotate(q_NR, at_N, side="query", context=context),
        rotary.rotate(k_NR, at_N, side="key", context=context),
    )


def singular_values(matrix_NN: Array) -> Array:
    """All of them, largest first, of a matrix that is known to be finite."""
    return np.asarray(scipy.linalg.svdvals(matrix_NN, check_finite=False))


def checked_positions(positions: ArrayLike | None, length: int, *, causal: bool) -> Array:
    """One position per row, 0, 1, 2, ... by default; rising where a causal mask is to make sense."""
    at_N = np.arange(length, dtype=np.float64) if positions is None else finite("positions", positions, axes=1)
    if len(at_N) != length:
        raise BadValue(f"{len(at_N)} positions given for {length} rows of queries and keys.")
    if causal and (np.diff(at_N) <= 0).any():
        raise BadValue("a causal mask needs positions that rise from row to row.")
    return at_N


def checked_head(encoding: Encoding, head: int) -> None:
    """Raise unless the encoding is given by tables that act inside the head, and has this head."""
    encoding.tables()
    if encoding.input is not None and encoding.rotary is None and encoding.bias is None:
        raise BadValue(
            f"'{encoding.name}' adds position to the input, before queries and keys exist: inside the head there is "
            "nothing to switch off. Use decompose() on the tokens x positions design."
        )
    if head < 0:
        raise BadValue(f"heads count from 0, got {head}.")
    if encoding.bias is not None and head >= encoding.bias.heads:
        raise BadValue(f"the encoding has no head {head}: it gives a bias to {encoding.bias.heads} heads.")


def even_step(at_N: Array) -> float | None:
    """The step between neighbouring positions where it is one and the same; None otherwise."""
    if len(at_N) < 2:
        return 1.0
    steps = np.diff(at_N)
    return float(steps[0]) if (steps == steps[0]).all() else None


def _bias(bias: LogitBias | None, at_N: Array, head: int) -> tuple[Array | None, Array | None]:
    """The bias as a list over offsets where that is all it depends on, else as a function of both positions."""
    if bias is None:
        return None, None
    step = even_step(at_N)
    if bias.toeplitz and step is not None:
        return bias.by_offset(step * np.arange(-(len(at_N) - 1), len(at_N)))[head], None
    if len(at_N) > 4 * DENSE_LIMIT:
        raise BadValue(
            f"this bias depends on both positions (or the positions are uneven): its table for {len(at_N)} positions "
            f"is {len(at_N) ** 2 * 8 / 2**30:.1f} GiB. Use fewer positions."
        )
    return None, bias.table(at_N, at_N)[head]


def _pairs_bound(rotary: Rotary | None, q_NR: Array, k_NR: Array) -> float:
    """sum_f ||z^f|| ||w^f||, norms over positions; a channel in no pair counts as a pair of its own (S5f)."""
    q2_R, k2_R = (q_NR**2).sum(axis=0), (k_NR**2).sum(axis=0)
    if rotary is None:
        return float(np.sqrt(q2_R * k2_R).sum())
    first_F, second_F = rotary.pairs_F2.T
    single = rotary.unpaired_R
    paired = np.sqrt((q2_R[first_F] + q2_R[second_F]) * (k2_R[first_F] + k2_R[second_F])).sum()
    return float(paired + np.sqrt(q2_R[single] * k2_R[single]).sum())


def _factors(sides: Sides) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return (sides.q_NR, sides.k_NR), (sides.q0_NR, sides.k0_NR)


def _bias_table(sides: Sides) -> Array | None:
    length = len(sides.q_NR)
    if sides.bias_NN is not None or sides.entries_T is None:
        return sides.bias_NN
    return np.asarray(scipy.linalg.toeplitz(sides.entries_T[length - 1 :], sides.entries_T[length - 1 :: -1]))


def _masked(matrix_NN: Array, causal: bool) -> Array:
    return np.where(_seen(len(matrix_NN)), matrix_NN, 0.0) if causal else matrix_NN


@lru_cache(maxsize=1)  # of many heads on the same tokens; `np.tril` makes it each time
def _seen(length: int) -> NDArray[np.bool_]:
    return np.tri(length, dtype=bool)


def _floor(sides: Sides, bias_norm: float) -> float:
    """Below this a norm is rounding: what the parts of the sum could have left behind when they cancel."""
    length = max(sides.q_NR.shape)
    return length * np.finfo(np.float64).eps * (max(sides.pairs_bound, sides.pairs_bound_reference) + bias_norm)


def _from_values(sides: Sides, values: Array, reference: Array, *, bias_norm: float, route: str) -> Contraction:
    length = len(sides.q_NR)
    floor = _floor(sides, bias_norm)
    values, reference = (part if part[0] > floor else np.zeros_like(part) for part in (values, reference))
    norm, norm_0 = float(values[0]), float(reference[0])
    erank, erank_0 = effective_rank(values), effective_rank(reference)
    rank_0 = numerical_rank(reference, length)
    gap = majorisation_gap(values, reference)
    return Contraction(
        positions=length,
        causal=sides.causal,
        route=route,
        norm=norm,
        norm_reference=norm_0,
        rho=norm / norm_0 if norm_0 else None,
        erank=erank,
        erank_reference=erank_0,
        erank_ratio=None if erank is None or erank_0 is None else erank / erank_0,
        stable_rank=stable_rank(values),
        stable_rank_reference=stable_rank(reference),
        rank_reference=rank_0,
        cond_r=_condition(values, rank_0, length),
        cond_r_reference=_condition(reference, rank_0, length),
        maj_gap=gap,
        maj_ok=None if gap is None else gap <= MAJORISATION_TOLERANCE,
        cap=(sides.pairs_bound + bias_norm) / norm if norm else None,
        values=values,
        values_reference=reference,
        reason=None if norm_0 else "the logits without position are zero: there is nothing to compare with",
    )


def _condition(values: Array, rank: int, length: int) -> float | None:
    """s_1 / s_r; None where s_r is zero to rounding, or r is."""
    if rank == 0 or numerical_rank(values, length) < rank:
        return None
    return float(values[0] / values[rank - 1])


def _by_lanczos(sides: Sides) -> Contraction:
    length, causal = len(sides.q_NR), sides.causal
    with_position, without = _operators(sides)
    found, found_0 = top_singular_values(with_position, 1), top_singular_values(without, 1)
    bias_norm, bias_found = 0.0, None
    if sides.entries_T is not None:
        bias_found = top_singular_values(toeplitz(sides.entries_T, length, length, causal=causal), 1)
    elif sides.bias_NN is not None:
        bias_found = top_singular_values(_matrix(_masked(sides.bias_NN, causal)), 1)
    if bias_found is not None:
        bias_norm = float(bias_found.values[0])
    floor = _floor(sides, bias_norm)
    norm, norm_0 = (float(part.values[0]) if part.values[0] > floor else 0.0 for part in (found, found_0))
    capped = [part for part in (found, found_0, bias_found) if part is not None and not part.converged]
    return Contraction(
        positions=length,
        causal=causal,
        route="lanczos",
        norm=norm,
        norm_reference=norm_0,
        rho=norm / norm_0 if norm_0 else None,
        erank=None,
        erank_reference=None,
        erank_ratio=None,
        stable_rank=None,
        stable_rank_reference=None,
        rank_reference=None,
        cond_r=None,
        cond_r_reference=None,
        maj_gap=None,
        maj_ok=None,
        cap=(sides.pairs_bound + bias_norm) / norm if norm else None,
        values=None,
        values_reference=None,
        residual=max(_relative(part) for part in (found, found_0, bias_found) if part is not None),
        reason=(
            f"a mask or a bias makes the logits of {length} positions full rank: only norms are found there, by "
            f"Lanczos{', which stopped at its cap: read them with their residual' if capped else ''}; "
            "effective rank, condition and majorisation need all singular values"
        ),
    )


def _operators(sides: Sides) -> tuple[Operator, Operator]:
    (q_NR, k_NR), (q0_NR, k0_NR) = _factors(sides)
    plain = causal_product if sides.causal else product
    without = plain(q0_NR, k0_NR)
    if sides.entries_T is not None:
        return (causal_biased if sides.causal else biased)(q_NR, k_NR, sides.entries_T), without
    if sides.bias_NN is not None:
        return plain(q_NR, k_NR) + _matrix(_masked(sides.bias_NN, sides.causal)), without
    return plain(q_NR, k_NR), without


def _matrix(matrix_NM: Array) -> Operator:
    rows, columns = matrix_NM.shape
    return Operator((rows, columns), lambda x: matrix_NM @ x, lambda y: matrix_NM.T @ y)


def _relative(found: TopValues) -> float:
    return float(found.residuals[0] / found.values[0]) if found.values[0] > 0 else 0.0
