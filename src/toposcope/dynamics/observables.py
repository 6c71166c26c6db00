"""What is measured on a cloud of tokens, and along a flow.

For tokens x_1 .. x_n:

* norms |x_i|: least, median, largest;
* mean distance |x_i - x_j| and mean cosine over pairs; dispersion, the root mean square distance from the mean token;
* effective rank, exp(-sum s log s) over the singular values divided by their sum: 1 for a line, up to min(n, d);
* clusters, the parts of the cloud under single linkage at 5 % of its size, now or at the start, whichever is larger;
* attention entropy, the mean over tokens and heads of -sum_j P_ij log P_ij, in nats;
* log energy, log sum_ij e^{l_ij}: it never rises in T3b and never falls in T4b;
* pair forms (x_i - x_j)^T A (x_i - x_j) for a symmetric A: none of them ever falls where T1 applies.

Every function first divides by the cloud's size, so that nothing overflows however far tokens have gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from toposcope.dynamics.fields import AttentionField

Array = NDArray[np.float64]

CLUSTER_SHARE = 0.05
FEW = 64  # tokens of which the distances of near pairs are taken from differences
NEAR_PAIR = 1e-5  # such pairs: their square distance over the sum of both from the mean
SQUARED = 1e-8  # least over largest eigenvalue of a Gram matrix whose roots are still right to 1e-11
MOST_PAIRED = 256  # tokens that enter the measures which look at all pairs; more are thinned evenly
_LARGEST = float(np.finfo(np.float64).max)


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
    size = float(np.abs(tokens).max()) if tokens.size else 0.0
    if size == 0:
        return np.zeros(len(tokens))
    return np.asarray(np.linalg.norm(tokens / size, axis=-1) * size)


def pair_distances(tokens: Array) -> Array:
    """|x_i - x_j| for i < j, in one vector; from differences, so that near pairs keep their digits."""
    first, second = np.triu_indices(len(tokens), 1)
    if len(tokens) <= 64:
        return norms(tokens[first] - tokens[second])
    size = float(np.abs(tokens).max()) or 1.0
    centred = tokens / size
    centred = centred - centred.mean(axis=0)
    squares = np.einsum("nd,nd->n", centred, centred)
    gram = centred @ centred.T
    return np.asarray(np.sqrt(np.maximum(squares[first] + squares[second] - 2 * gram[first, second], 0.0)) * size)


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
    values = scipy.linalg.svdvals(tokens / size, check_finite=False)
    share = values / values.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def cluster_labels(tokens: Array, reach: float, distances: Array | None = None) -> NDArray[np.int32]:
    """The part of the cloud each token belongs to when tokens nearer than `reach` are joined (single linkage).

    `distances` are those of `pair_distances`, where they are known already.
    """
    count = len(tokens)
    near = np.zeros((count, count), dtype=bool)
    near[np.triu_indices(count, 1)] = (pair_distances(tokens) if distances is None else distances) <= reach
    return np.asarray(connected_components(near, directed=False)[1])


def clusters(tokens: Array, size_at_start: float = 0.0, distances: Array | None = None) -> int:
    """How many parts the cloud falls into at 5 % of its root mean square norm, now or at the start."""
    size = max(_rms(tokens), size_at_start)
    return int(cluster_labels(tokens, CLUSTER_SHARE * size, distances).max()) + 1


def dispersion(tokens: Array) -> float:
    """The root mean square distance from the mean token."""
    return _rms(tokens - tokens.mean(axis=0))


def pair_forms(tokens: Array, A: Array) -> Array:
    """(x_i - x_j)^T A (x_i - x_j) for i < j: with A = W V^-1 symmetric and no mask, none ever falls (T1)."""
    first, second = np.triu_indices(len(tokens), 1)
    size = float(np.abs(tokens).max()) or 1.0
    delta = (tokens[first] - tokens[second]) / size
    with np.errstate(over="ignore"):
        forms = np.einsum("pd,pd->p", delta @ A, delta) * min(size, 1e150) ** 2
    return np.clip(forms, -_LARGEST, _LARGEST)


def entropy(attention_HNN: Array) -> float:
    """The mean over heads and tokens of -sum_j P_ij log P_ij, in nats."""
    logs = np.log(attention_HNN, out=np.zeros_like(attention_HNN), where=attention_HNN > 0)
    return float(-(attention_HNN * logs).sum(axis=2).mean())


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
    heavy: bool = True,
) -> dict[str, float]:
    """Every observable of one cloud of tokens; those of attention where the field and its state are given.

    Without `heavy` the effective rank and the clusters are left out (NaN): they cost as much as all others.
    """
    lengths = norms(tokens)
    cloud = _Cloud(tokens[thinned(len(tokens))])
    found = {
        "norm_min": float(lengths.min()),
        "norm_median": float(np.median(lengths)),
        "norm_max": float(lengths.max()),
        "distance_mean": cloud.mean_distance(),
        "dispersion": cloud.dispersion(),
        "cosine_mean": mean_cosine(cloud.tokens),
        "effective_rank": cloud.effective_rank() if heavy else float("nan"),
        "clusters": float(cloud.clusters(size_at_start)) if heavy else float("nan"),
    }
    if field is not None and state is not None:
        attention_HNN, found["log_energy"] = field.attention_and_energy(state)
        found["attention_entropy"] = entropy(attention_HNN)
    if pair_matrix is not None and len(cloud.tokens) > 1:
        forms = pair_forms(cloud.tokens, pair_matrix)
        found["pair_form_min"], found["pair_form_max"] = float(forms.min()), float(forms.max())
        found["pair_form_mean"] = _mean(forms)
    return found


class _Cloud:
    """Tokens divided by their size, with one Gram matrix of their distances from the mean token."""

    def __init__(self, tokens: Array) -> None:
        self.tokens = tokens
        self._size = (float(np.abs(tokens).max()) if tokens.size else 0.0) or 1.0
        self._x = tokens / self._size
        self._mean = self._x.mean(axis=0)
        self._centred = self._x - self._mean
        self._gram = self._centred @ self._centred.T
        self._squares = np.einsum("nd,nd->n", self._centred, self._centred)

    @cached_property
    def _distances(self) -> Array:
        """|x_i - x_j| as a matrix; of few tokens near pairs are taken from differences and keep their digits."""
        both = self._squares[:, None] + self._squares
        apart = both - 2 * self._gram
        np.maximum(apart, 0.0, out=apart)
        if len(apart) <= FEW:
            first, second = np.nonzero(apart < NEAR_PAIR * both)
            delta = self._x[first] - self._x[second]
            apart[first, second] = np.einsum("pd,pd->p", delta, delta)
        np.fill_diagonal(apart, 0.0)
        return np.sqrt(apart)

    def mean_distance(self) -> float:
        count = len(self._x)
        return float(self._distances.sum() / (count * (count - 1))) * self._size if count > 1 else 0.0

    def dispersion(self) -> float:
        return float(np.sqrt(self._squares.mean())) * self._size

    def effective_rank(self) -> float:
        """`effective_rank`, by the eigenvalues of a Gram matrix where no singular value is so small as to suffer."""
        if len(self._x) > self._x.shape[1]:
            gram = self._x.T @ self._x
        else:
            shift = self._centred @ self._mean
            gram = self._gram + shift[:, None] + shift + self._mean @ self._mean
        values = np.linalg.eigvalsh(gram)
        if not values[0] > SQUARED * values[-1]:
            return effective_rank(self.tokens)
        share = np.sqrt(values)
        share /= share.sum()
        return float(np.exp(-(share * np.log(share)).sum()))

    def clusters(self, size_at_start: float) -> int:
        count = len(self._x)
        size = max(_rms(self.tokens), size_at_start) / self._size
        near = self._distances <= CLUSTER_SHARE * size
        joined = int(near.sum())
        if joined in (count, count * count):  # none near another, or all
            return count if joined == count else 1
        return int(connected_components(csr_array(near), directed=False)[0])


def rms(tokens: Array) -> float:
    """The root mean square norm of the tokens."""
    return _rms(tokens)


def _rms(tokens: Array) -> float:
    size = float(np.abs(tokens).max()) if tokens.size else 0.0
    return float(np.sqrt(np.mean(np.sum((tokens / size) ** 2, axis=-1))) * size) if size > 0 else 0.0


def _mean(values: Array) -> float:
    size = float(np.abs(values).max())
    return float(np.mean(values / size) * size) if size > 0 else 0.0
