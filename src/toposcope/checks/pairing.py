"""Which channels turn together: what trained query and key weights say about the rotary pairing.

The logit of a rotary pair (a, b) at offset t is

    (q_a k_a + q_b k_b) cos w t + (q_a k_b - q_b k_a) sin w t     (up to the sign of t)

so a trained head that looks back or ahead has q_a k_b - q_b k_a far from zero in its true pairs, and has no reason to
in any other. With c_rs the cosine between query row r and key row s of a head, the statistic of a pairing is

    A = mean over heads and its pairs of (c_ab - c_ba)^2

and its z-score is taken against random pairings of the same channels. Row norms, the obvious alternative, do not
serve: neighbouring frequencies have similar norms, so half-split weights look interleaved by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Array, Pairing

FEWEST_PAIRS = 8  # below this there are too few pairings for a z-score to mean anything
RANDOM_PAIRINGS = 400
CLEAR = 6.0  # z-score from which a pairing is taken as shown by the weights
APART = 2.0  # and it must be this many times the other's


@dataclass(frozen=True)
class PairingEvidence:
    """How well the declared pairing and the other one fit, as z-scores against random pairings."""

    declared: float
    other: float

    @property
    def verdict(self) -> Literal["declared", "other", "open"]:
        if self.other >= CLEAR and self.other >= APART * max(self.declared, 0.0):
            return "other"
        if self.declared >= CLEAR and self.declared >= APART * max(self.other, 0.0):
            return "declared"
        return "open"


def other_pairs(pairs_F2: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The same channels paired half-split, and paired with their neighbour."""
    channels = np.sort(pairs_F2.reshape(-1))
    return channels.reshape(2, -1).T, channels.reshape(-1, 2)


def cross_terms(q_HRD: Array, k_HRD: Array) -> Array:
    """(c_rs - c_sr)^2 for all channels r, s, averaged over heads: (R, R)."""
    total = np.zeros((q_HRD.shape[1], q_HRD.shape[1]))
    for q_RD, k_RD in zip(q_HRD, k_HRD, strict=True):
        c_RR = unit_rows(q_RD) @ unit_rows(k_RD).T
        total += (c_RR - c_RR.T) ** 2
    return total / len(q_HRD)


def weigh(cross_RR: Array, pairs_F2: NDArray[np.intp], pairing: Pairing, seed: int = 0) -> PairingEvidence | None:
    """z-scores of the declared and of the other pairing; None where there are too few pairs, or no weights."""
    half_F2, neighbour_F2 = other_pairs(pairs_F2)
    scores = z_scores(cross_RR, np.sort(pairs_F2.reshape(-1)), [half_F2, neighbour_F2], seed)
    if scores is None:
        return None
    z_half, z_neighbour = scores
    return PairingEvidence(*((z_half, z_neighbour) if pairing == "half" else (z_neighbour, z_half)))


def z_scores(
    cross_RR: Array, channels: NDArray[np.intp], pairings: Sequence[NDArray[np.intp]], seed: int = 0
) -> list[float] | None:
    """How far the mean of each pairing's terms is above that of random pairings of these channels, in deviations."""
    if len(channels) < 2 * FEWEST_PAIRS or not np.any(cross_RR):
        return None
    rng = np.random.default_rng(seed)
    random = np.array([_mean(cross_RR, rng.permutation(channels).reshape(-1, 2)) for _ in range(RANDOM_PAIRINGS)])
    spread = float(random.std())
    if spread == 0:
        return None
    return [float((_mean(cross_RR, pairs_F2) - random.mean()) / spread) for pairs_F2 in pairings]


def _mean(cross_RR: Array, pairs_F2: NDArray[np.intp]) -> float:
    return float(cross_RR[pairs_F2[:, 0], pairs_F2[:, 1]].mean())


def unit_rows(rows: Array) -> Array:
    """Rows at length 1; those of zeros stay."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)
