"""What queries and keys have in common, pair by pair: gathered layer by layer, judged for all layers together.

With c_rs the cosine between query row r and key row s of a head, the pair (a, b) adds

    (c_aa + c_bb) cos w t + (c_ab - c_ba) sin w t

to the logit of a token with itself, t tokens apart. Training shapes the sine part of pairs that turn, and of no other
two channels (`pairing.py`). Where it is, how large it is from pair to pair, and its sign are what is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer
from toposcope.checks.pairing import FEWEST_PAIRS, PairingEvidence, unit_rows, weigh, z_scores
from toposcope.encodings.record import Array, Rotary
from toposcope.encodings.rotary import channel_pairs

Side = Literal["query", "key"]
WIDTHS = (1.0, 0.75, 0.5, 0.25)  # shares of a head that models rotate
FAST = 0.05  # rad per token: pairs that tell a token from the one before it
STEP = np.log(2.0)  # of a fall: the least by which the sine part changes, as a logarithm
FIT = 0.4  # and the least share of its variance that the fall explains


@dataclass
class Overlaps:
    """Sums over the layers of one encoding."""

    rotary: Rotary
    cross_RR: Array = field(default_factory=lambda: np.zeros(()))
    one_sided: dict[tuple[Side, int], Array] = field(default_factory=dict)
    squares_F: Array = field(
        default_factory=lambda: np.zeros(())
    )  # of the sine part, against that of any two channels
    signs: list[Array] = field(
        default_factory=list
    )  # of each layer, the mean sine part of its fast pairs by key head
    layers: int = 0

    def add(self, layer: Layer) -> PairingEvidence | None:
        """Add a layer's weights; what they alone say of the pairing."""
        spec, w, rotary = layer.spec, layer.weights, self.rotary
        gain = 1.0 if w.input_norm is None or w.input_norm.gain is None else w.input_norm.gain
        turning = spec.heads if rotary.turning_heads is None else min(rotary.turning_heads, spec.heads)
        a_F, b_F = rotary.pairs_F2.T
        orders = _other_orders(rotary.pairs_F2, spec.head_dim)
        cross_RR = np.zeros((spec.head_dim, spec.head_dim))
        mixed = {key: np.zeros_like(cross_RR) for key in orders}
        sine_GF = np.zeros((spec.kv_heads, len(a_F)))
        for h in range(turning):
            head = layer.head(h)
            c_RR = unit_rows(head.q * gain) @ unit_rows(head.k * gain).T
            cross_RR += (c_RR - c_RR.T) ** 2 / turning
            for (side, which), order_R in orders.items():
                one_RR = c_RR[order_R] if side == "query" else c_RR[:, order_R]
                mixed[side, which] += (one_RR - one_RR.T) ** 2 / turning
            sine_GF[head.kv_group] += (c_RR[a_F, b_F] - c_RR[b_F, a_F]) * spec.kv_heads / spec.heads
        mean = float(cross_RR.mean())
        if mean > 0:
            self.cross_RR = self.cross_RR + cross_RR / mean
            self.one_sided = {key: self.one_sided.get(key, 0.0) + each / mean for key, each in mixed.items()}
            self.squares_F = self.squares_F + cross_RR[a_F, b_F] / mean
            fast_F = rotary.frequencies(None) >= FAST
            if fast_F.any():
                self.signs.append(sine_GF[:, fast_F].mean(axis=1))
            self.layers += 1
        return weigh(cross_RR, rotary.pairs_F2, rotary.pairing)

    def pairing(self) -> PairingEvidence | None:
        """What all layers say of the declared pairs and of the other layout."""
        return weigh(self.cross_RR, self.rotary.pairs_F2, self.rotary.pairing) if self.layers else None

    def other_widths(self) -> dict[tuple[int, str], float]:
        """z-scores of the pairs of heads that turn another number of their channels, by width and layout."""
        start, declared, size = int(self.rotary.pairs_F2.min()), self.rotary.channels, self.rotary.head_dim
        if not self.layers or start != 0:
            return {}
        widths = sorted({int(share * size) // 2 * 2 for share in WIDTHS} - {declared})
        found: dict[tuple[int, str], float] = {}
        for width in (each for each in widths if each >= 2 * FEWEST_PAIRS):
            both = [channel_pairs(width, "half"), channel_pairs(width, "interleaved")]
            scores = z_scores(self.cross_RR, np.arange(width), both)
            if scores is not None:
                found.update({(width, "half-split"): scores[0], (width, "interleaved"): scores[1]})
        return found

    def still(self) -> float:
        """The z-score of neighbours among the channels that are said not to turn; 0 where there are too few."""
        still = np.setdiff1d(np.arange(self.rotary.head_dim), self.rotary.pairs_F2)
        if not self.layers or len(still) < 2 * FEWEST_PAIRS or len(still) % 2:
            return 0.0
        scores = z_scores(self.cross_RR, still, [still.reshape(-1, 2)])
        return 0.0 if scores is None else scores[0]

    def sides(self) -> dict[Side, float]:
        """z-scores of the declared pairs with the rows of the queries, or of the keys, alone in another order."""
        best: dict[Side, float] = {}
        for (side, _), cross_RR in self.one_sided.items():
            scores = z_scores(cross_RR, np.sort(self.rotary.pairs_F2.reshape(-1)), [self.rotary.pairs_F2])
            if scores is not None:
                best[side] = max(best.get(side, -np.inf), scores[0])
        return best

    def forward(self) -> float | None:
        """How far the mean sine part of the fast pairs is above 0, in standard errors over key heads; None: too few.

        Above 0 a head sees a token behind it better than one ahead of it.
        """
        each = np.concatenate(self.signs) if self.signs else np.zeros(0)
        spread = float(each.std(ddof=1)) if len(each) >= 8 else 0.0
        return float(each.mean() / spread * len(each) ** 0.5) if spread > 0 else None

    def fall(self) -> Fall | None:
        """Where the sine part falls from pair to pair; None where it does not fall, or rise, in one step."""
        return (
            None if not self.layers or len(self.squares_F) < FEWEST_PAIRS else fall_of(self.squares_F / self.layers)
        )


@dataclass(frozen=True)
class Fall:
    """A step in the size of the sine part: between pairs `at - 1` and `at`, by this factor (below 1: it rises)."""

    at: int
    factor: float
    fit: float  # share of the variance of its logarithm that the step explains


def fall_of(squares_F: Array) -> Fall | None:
    """The one step that explains most of the logarithms of these squares."""
    logs = np.log(np.maximum(squares_F, 1e-12))
    total = float(((logs - logs.mean()) ** 2).sum())
    if total == 0:
        return None
    steps = []
    for at in range(2, len(logs) - 1):
        left, right = logs[:at], logs[at:]
        between = at * len(right) / len(logs) * (left.mean() - right.mean()) ** 2
        steps.append((float(between) / total, at, float(left.mean() - right.mean())))
    fit, at, by = max(steps)
    return Fall(at, float(np.exp(by)), fit) if fit >= FIT and abs(by) >= STEP else None


def _other_orders(pairs_F2: NDArray[np.intp], size: int) -> dict[tuple[Side, int], NDArray[np.intp]]:
    """Rows of one side sorted as the other layout has them, and the reverse of that."""
    channels = np.sort(pairs_F2.reshape(-1))
    order = np.arange(size)
    order[channels] = channels.reshape(2, -1).T.reshape(-1)
    return {(side, i): each for side in ("query", "key") for i, each in enumerate((order, np.argsort(order)))}
