"""What is measured on a cloud of tokens, and along a flow.

For tokens x_1 .. x_n:

* norms |x_i|: least, median, largest;
* mean distance |x_i - x_j| and mean cosine over pairs; dispersion, the root mean square distance from the mean token;
* effective rank, exp(-sum s log s) over the singular values divided by their sum: 1 for a line, up to min(n, d);
* clusters, the parts of the cloud under single linkage at 5% of its size, now or at the start, whichever is larger;
* attention entropy, the mean over tokens and heads of -sum_j P_ij log P_ij, in nats;
* log energy, log sum_ij e^{l_ij}: it never rises in T3b and never falls in T4b;
* pair forms (x_i - x_j)^T A (x_i - x_j) for a symmetric A: none of them ever falls where T1 applies.

Every function first divides by the cloud's size, so that nothing overflows however far tokens have gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from toposcope.dynamics.fields import AttentionField

Array = NDArray[np.float64]

CLUSTER_SHARE = 0.05
PAIRED = ("distance_mean", "effective_rank", "clusters")
HEAVY = (*PAIRED, "attention_entropy", "log_energy")  # measures that look at all pairs
FEW = 64  # tokens of which the distances of near pairs are taken from differences
NEAR_PAIR = 1e-5  # such pairs: their square distance over the sum of both from the mean
CLOSE = 1e-2  # a cloud whose spread has this share of its square: the mean is taken off first, and costs no digits
DOUBT = 1e-10  # of an entropy of roots of eigenvalues that may remain
ORDINARY = (1e-100, 1e100)  # sizes whose squares are numbers
MOST_PAIRED = 256  # tokens that enter the measures which look at all pairs; more are thinned evenly
_EPS, _LARGEST = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Observable:
    """A measured quantity: its name in files, its words on paper, and whether it shows best on a logarithmic axis."""

    name: str
    words: str
    logarithmic: bool = False


OBSERVABLES = (
    Observable("norm_min", "smallest norm", True),
    Observable("norm_median", "median norm", True),
    Observable("norm_max", "largest norm", True),
    Observable("distance_mean", "mean distance", True),
    Observable("dispersion", "dispersion", True),
    Observable("cosine_mean", "mean cosine"),
    Observable("effective_rank", "effective rank"),
    Observable("clusters", "clusters"),
    Observable("attention_entropy", "attention entropy"),
    Observable("log_energy", "log energy"),
    Observable("pair_form_min", "least pair form"),
    Observable("pair_form_mean", "mean pair form"),
    Observable("pair_form_max", "largest pair form"),
)


def norms(tokens: Array) -> Array:
    """|x_i| of every token, whatever their size."""
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", tokens, tokens))
    if ORDINARY[0] < lengths.max(initial=0.0) < ORDINARY[1]:
        return lengths
    size = float(np.abs(tokens).max(initial=0.0))
    return lengths if size == 0 else np.asarray(np.linalg.norm(tokens / size, axis=-1) * size)


def mean_cosine(tokens: Array) -> float:
    """The mean over pairs of the cosine between two tokens. NaN where no pair is left.

    Tokens below 1e-7 of the largest are left out: what direction they have is the integrator's noise.
    """
    lengths = norms(tokens)
    sizeable = lengths > 1e-7 * lengths.max()
    unit = tokens[sizeable] / lengths[sizeable, None]
    count = len(unit)
    if count < 2:
        return float("nan")
    total = unit.sum(axis=0)
    return float((total @ total - count) / (count * (count - 1)))


def effective_rank(tokens: Array) -> float:
    """exp of the entropy of the singular values' shares: how many directions the cloud fills. 0 for tokens at 0."""
    size = float(np.abs(tokens).max()) if tokens.size else 0.0
    if size == 0:
        return 0.0
    scaled = tokens / size
    values = scipy.linalg.svdvals(scaled if len(scaled) >= scaled.shape[1] else scaled.T, check_finite=False)
    share = values / values.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def quick_rank(tokens: Array) -> float:
    """`effective_rank`, by the eigenvalues of the smaller Gram matrix where that costs no digits."""
    size = float(np.abs(tokens).max()) if tokens.size else 0.0
    if size == 0:
        return 0.0
    scaled = tokens / size
    return _rank_of_gram(scaled @ scaled.T if len(scaled) <= scaled.shape[1] else scaled.T @ scaled, scaled)


def dispersion(tokens: Array) -> float:
    """The root mean square distance from the mean token."""
    return rms(tokens - tokens.mean(axis=0))


def pair_forms(tokens: Array, A: Array) -> Array:
    """(x_i - x_j)^T A (x_i - x_j) for i < j: with A = W V^-1 symmetric and no mask, none ever falls (T1)."""
    first, second = np.triu_indices(len(tokens), 1)
    size = float(np.abs(tokens).max()) or 1.0
    delta = (tokens[first] - tokens[second]) / size
    with np.errstate(over="ignore"):
        forms = np.einsum("pd,pd->p", delta @ A, delta) * min(size, 1e150) ** 2
    return np.clip(forms, -_LARGEST, _LARGEST)


def thinned(count: int, most: int = MOST_PAIRED) -> NDArray[np.intp]:
    """At most so many indices of `count` tokens, evenly spaced, first and last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.intp))


def measure(
    tokens: Array,
    *,
    size_at_start: float = 0.0,
    field: AttentionField | None = None,
    state: Array | None = None,
    pair_matrix: Array | None = None,
) -> dict[str, float]:
    """Every observable of one cloud of tokens; those of attention where the field and its state are given."""
    found = measure_all(tokens[None], size_at_start=size_at_start, pair_matrix=pair_matrix)
    if field is not None and state is not None:
        found |= _of_attention(state[None], field, np.array([True]))
    return {name: float(values[0]) for name, values in found.items()}


def measure_all(
    clouds_TND: Array,
    *,
    size_at_start: float = 0.0,
    field: AttentionField | None = None,
    pair_matrix: Array | None = None,
    heavy_T: NDArray[np.bool_] | None = None,
) -> dict[str, Array]:
    """The same of several clouds at once, one array for each observable.

    Where `heavy_T` says no, those of `HEAVY` are left out (NaN): they cost more than all others.
    """
    full_T = np.ones(len(clouds_TND), dtype=bool) if heavy_T is None else heavy_T
    found = _of_clouds(clouds_TND, full_T, size_at_start)
    if field is not None:
        found |= _of_attention(clouds_TND, field, full_T)
    if pair_matrix is not None and clouds_TND.shape[1] > 1:
        found |= _of_pairs(clouds_TND, pair_matrix)
    return found


def _of_attention(states_TND: Array, field: AttentionField, heavy_T: NDArray[np.bool_]) -> dict[str, Array]:
    found = {name: np.full(len(states_TND), np.nan) for name in ("log_energy", "attention_entropy")}
    for t in np.flatnonzero(heavy_T):
        found["attention_entropy"][t], found["log_energy"][t] = field.entropy_and_energy(states_TND[t])
    return found


def _of_pairs(clouds_TND: Array, A: Array) -> dict[str, Array]:
    few = thinned(clouds_TND.shape[1])
    forms = [pair_forms(cloud[few], A) for cloud in clouds_TND]
    return {
        "pair_form_min": np.array([each.min() for each in forms]),
        "pair_form_max": np.array([each.max() for each in forms]),
        "pair_form_mean": np.array([_mean(each) for each in forms]),
    }


def _of_clouds(clouds_TND: Array, heavy_T: NDArray[np.bool_], size_at_start: float) -> dict[str, Array]:
    """What is seen of the tokens alone; distances, clusters and rank come from one Gram matrix of each cloud."""
    x_TND, lengths_TN, size_T = _scaled(clouds_TND)
    found = {
        "norm_min": lengths_TN.min(axis=1) * size_T,
        "norm_median": np.median(lengths_TN, axis=1) * size_T,
        "norm_max": lengths_TN.max(axis=1) * size_T,
    }
    few = thinned(x_TND.shape[1])
    if len(few) < x_TND.shape[1]:
        x_TND, lengths_TN = x_TND[:, few], lengths_TN[:, few]
    found["cosine_mean"], mean_TD = _cosines_and_means(x_TND, lengths_TN)
    square_T = (lengths_TN**2).mean(axis=1)
    spread_T = square_T - np.einsum("td,td->t", mean_TD, mean_TD)
    for name in PAIRED:
        found[name] = np.full(len(x_TND), np.nan)
    for t in np.flatnonzero(heavy_T | (spread_T < CLOSE * square_T)):
        centred_ND = x_TND[t] - mean_TD[t]
        spread_T[t] = np.einsum("nd,nd->", centred_ND, centred_ND) / len(few)
        if heavy_T[t]:
            gram_NN = centred_ND @ centred_ND.T
            apart_NN = _distances(x_TND[t], gram_NN)
            found["distance_mean"][t] = apart_NN.sum() / max(1, len(few) * (len(few) - 1)) * size_T[t]
            found["effective_rank"][t] = _rank(x_TND[t], centred_ND, gram_NN)
            now = max(float(np.sqrt(square_T[t])), size_at_start / size_T[t])
            found["clusters"][t] = _clusters(apart_NN, CLUSTER_SHARE * now)
    found["dispersion"] = np.sqrt(spread_T) * size_T
    return found


def _scaled(clouds_TND: Array) -> tuple[Array, Array, Array]:
    """The clouds in units in which squares are numbers, the norms of their tokens, and these units."""
    one_T = np.ones(len(clouds_TND))
    with np.errstate(over="ignore", under="ignore"):
        lengths_TN = np.sqrt(np.einsum("tnd,tnd->tn", clouds_TND, clouds_TND))
    top_T = lengths_TN.max(axis=1, initial=0.0)
    if ((top_T > ORDINARY[0]) & (top_T < ORDINARY[1])).all():
        return clouds_TND, lengths_TN, one_T
    top_T = np.abs(clouds_TND).max(axis=(1, 2), initial=0.0)
    size_T = np.where((top_T > ORDINARY[0]) & (top_T < ORDINARY[1]) | (top_T == 0), one_T, top_T)
    x_TND = clouds_TND / size_T[:, None, None]
    return x_TND, np.sqrt(np.einsum("tnd,tnd->tn", x_TND, x_TND)), size_T


def _distances(x_ND: Array, gram_NN: Array) -> Array:
    """|x_i - x_j| as a matrix; of few tokens near pairs are taken from differences and keep their digits."""
    squares_N = np.diag(gram_NN)
    both_NN = squares_N[:, None] + squares_N
    apart_NN = np.maximum(both_NN - 2 * gram_NN, 0.0)
    if len(x_ND) <= FEW:
        np.fill_diagonal(apart_NN, np.inf)
        first, second = np.nonzero(apart_NN < NEAR_PAIR * both_NN)
        delta = x_ND[first] - x_ND[second]
        apart_NN[first, second] = np.einsum("pd,pd->p", delta, delta)
    np.fill_diagonal(apart_NN, 0.0)
    return np.asarray(np.sqrt(apart_NN, out=apart_NN))


def _rank(x_ND: Array, centred_ND: Array, gram_NN: Array) -> float:
    """`effective_rank`, by the eigenvalues of a Gram matrix where no singular value is so small as to suffer."""
    if len(x_ND) > x_ND.shape[1]:
        gram = x_ND.T @ x_ND
    else:
        mean_D = x_ND.mean(axis=0)
        shift_N = centred_ND @ mean_D
        gram = gram_NN + shift_N[:, None] + shift_N + mean_D @ mean_D
    return _rank_of_gram(gram, x_ND)


def _rank_of_gram(gram: Array, x_ND: Array) -> float:
    """By roots of eigenvalues, each known to eps of the largest; by singular values where that weighs too much."""
    values = np.linalg.eigvalsh(gram)
    if not values[0] > 0:
        return effective_rank(x_ND)
    roots = np.sqrt(values)
    share = roots / roots.sum()
    logs = np.log(share)
    doubt = float(_EPS * values[-1] / 2 * np.linalg.norm((1 - logs) / roots) / roots.sum())
    return float(np.exp(-(share * logs).sum())) if doubt < DOUBT else effective_rank(x_ND)


def _clusters(distances_NN: Array, reach: float) -> int:
    near = distances_NN <= reach
    joined, count = int(np.count_nonzero(near)), len(near)
    if joined in (count, count * count):  # none near another, or all
        return count if joined == count else 1
    return int(connected_components(csr_array(near), directed=False)[0])


def _cosines_and_means(x_TND: Array, lengths_TN: Array) -> tuple[Array, Array]:
    """`mean_cosine` of each cloud, and its mean token."""
    sizeable = lengths_TN > 1e-7 * lengths_TN.max(axis=1, keepdims=True)
    inverse_TN = np.divide(1.0, lengths_TN, out=np.zeros_like(lengths_TN), where=sizeable)
    even_TN = np.full(lengths_TN.shape, 1 / lengths_TN.shape[1])
    # one vector times a matrix is read straight through; both in one product are several times slower
    total_TD, mean_TD = ((weights_TN[:, None] @ x_TND)[:, 0] for weights_TN in (inverse_TN, even_TN))
    count_T = sizeable.sum(axis=1)
    pairs_T = (count_T * (count_T - 1)).astype(np.float64)
    sums_T = np.einsum("td,td->t", total_TD, total_TD) - count_T
    return np.divide(sums_T, pairs_T, out=np.full(len(pairs_T), np.nan), where=count_T > 1), mean_TD


def rms(tokens: Array) -> float:
    """The root mean square norm of the tokens."""
    lengths = norms(tokens)
    size = float(lengths.max(initial=0.0))
    return float(np.sqrt(np.mean((lengths / size) ** 2)) * size) if size > 0 else 0.0


def _mean(values: Array) -> float:
    size = float(np.abs(values).max())
    return float(np.mean(values / size) * size) if size > 0 else 0.0
