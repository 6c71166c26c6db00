"""Where a query or key stands: its vector beside those of the same content at known positions.

No frequencies, pairs or tables are needed, so it reads any encoding that moves queries and keys, in any precision:
the nearest of the known vectors is the answer.
Shapes: B sequences, N tokens, H heads, R head width, S known positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Positions = NDArray[np.int64]
NOWHERE = -1  # what stands at none of the known positions
_ROUNDINGS = 8  # a vector of the same content at the same position may differ by so many roundings


@dataclass(frozen=True, eq=False)
class Ruler:
    """The vectors of one attention's queries (or keys) at positions 0, 1, 2, …; `eps` is the precision's."""

    known_SHR: Array
    eps: float

    @classmethod
    def of(cls, vectors: Any, eps: float) -> Ruler | None:
        """The ruler of one sequence whose tokens are all alike, read in its own order; None where it has no heads."""
        vectors_BHNR = by_heads(vectors, 1)
        return None if vectors_BHNR is None else cls(doubled(vectors_BHNR)[0].transpose(1, 0, 2), eps)

    @property
    def finite(self) -> bool:
        """Whether these are numbers: NaN stands nowhere."""
        return bool(np.isfinite(self.known_SHR).all())

    @property
    def still(self) -> bool:
        """Whether position does not turn these vectors (queries may grow with it), so that nothing can be read."""
        size_SHR = np.linalg.norm(self.known_SHR, axis=-1, keepdims=True)
        unit_SHR = self.known_SHR / np.maximum(size_SHR, 1e-300)
        return bool(np.abs(unit_SHR - unit_SHR[:1]).max() <= _ROUNDINGS * self.eps)

    def distances(self, vectors_BHNR: Any) -> tuple[Array, Array, float]:
        """How far each vector is from each known one (B, N, S), the known ones from another (S, S), and the noise."""
        seen_BNHR, known_SHR = doubled(vectors_BHNR).transpose(0, 2, 1, 3), self.known_SHR
        fewer = min(seen_BNHR.shape[2], known_SHR.shape[1])  # keys are shown once per group, or once per head
        seen_BNHR = seen_BNHR[:, :, :: seen_BNHR.shape[2] // fewer][:, :, :fewer]
        known_SHR = known_SHR[:, :: known_SHR.shape[1] // fewer][:, :fewer]
        spread_HR = np.ptp(known_SHR, axis=0)
        moves_HR = spread_HR > _ROUNDINGS * self.eps * np.abs(known_SHR).max()
        if not moves_HR.any():
            moves_HR[:] = True
        seen_BNK, known_SK = seen_BNHR[..., moves_HR], known_SHR[:, moves_HR]
        noise = _ROUNDINGS * self.eps * float(np.sqrt((known_SK**2).sum(-1).mean()))
        return _apart(seen_BNK, known_SK), _apart(known_SK, known_SK), noise

    def reading(self, vectors_BHNR: Any) -> Reading:
        """Where each vector stands, and where it might as well: positions may look alike."""
        apart_BNS, scale_SS, noise = self.distances(vectors_BHNR)
        best_BN = apart_BNS.argmin(-1)
        near_BN1 = np.take_along_axis(apart_BNS, best_BN[..., None], -1)
        gap_S = np.where(scale_SS > noise, scale_SS, np.inf).min(-1)
        far_S = np.maximum(np.where(np.isfinite(gap_S), gap_S, 0) / 2, noise)
        there_BN = near_BN1[..., 0] <= far_S[best_BN]
        alike_BNS = (apart_BNS <= near_BN1 + noise) & there_BN[..., None]
        return Reading(np.where(there_BN, best_BN, NOWHERE), alike_BNS)


@dataclass(frozen=True, eq=False)
class Reading:
    """The nearest known position of each vector (or NOWHERE), and all that are no farther but for noise."""

    best_BN: Positions
    alike_BNS: NDArray[np.bool_]

    def cut(self, rows: slice, columns: NDArray[np.bool_]) -> Reading:
        """Some rows, and of these some vectors."""
        return Reading(self.best_BN[rows][:, columns], self.alike_BNS[rows][:, columns])

    def fits(self, expected_BN: Positions) -> NDArray[np.bool_]:
        """Which vectors may stand where they are expected."""
        known = self.alike_BNS.shape[-1]
        told_BN = np.clip(expected_BN, 0, known - 1)
        found = np.take_along_axis(self.alike_BNS, told_BN[..., None], -1)[..., 0]
        return np.asarray(found & (expected_BN == told_BN))

    def at(self, expected_BN: Positions) -> Positions:
        """The position of each vector: the expected one where it may be, else the nearest."""
        return np.where(self.fits(expected_BN), expected_BN, self.best_BN)


def _apart(left: Array, right_SK: Array) -> Array:
    squared = (left**2).sum(-1)[..., None] + (right_SK**2).sum(-1) - 2 * left @ right_SK.T
    return np.asarray(np.sqrt(np.maximum(squared, 0)))


def by_heads(vectors: Any, rows: int) -> Any:
    """Vectors as (B, H, N, R) where a model keeps them so, or its heads in the batch; None where it does neither."""
    if vectors.dim() == 3 and vectors.shape[0] % rows == 0:
        return vectors.reshape(rows, -1, *vectors.shape[1:])
    return vectors if vectors.dim() == 4 and vectors.shape[0] == rows else None


def doubled(tensor: Any) -> Array:
    """A tensor as float64, in the memory of numpy."""
    import torch

    found: Array = tensor.detach().cpu().to(torch.float64).numpy()
    return found


@dataclass(frozen=True, eq=False)
class BiasRuler:
    """What is added to the logits, by offset (query minus key), less what a query's own key gets.

    Offsets with the same bias (the buckets of T5) cannot be told apart: the expected one is then taken as seen.
    """

    known_HS: Array
    offsets_S: Positions
    noise: float
    causal: bool
    none: int = 10**9  # stands for no known offset

    @classmethod
    def of(cls, added_HNN: Array, causal: bool, eps: float) -> BiasRuler:
        """The ruler of a whole text: its last query looks back, its first one ahead."""
        count = added_HNN.shape[-1]
        back_HS = added_HNN[:, -1, ::-1] - added_HNN[:, -1, -1:]
        ahead_HS = added_HNN[:, 0, :0:-1] - added_HNN[:, 0, :1]
        known_HS = back_HS if causal else np.concatenate([ahead_HS, back_HS], axis=1)
        offsets_S = np.arange(0 if causal else 1 - count, count)
        return cls(known_HS, offsets_S, _ROUNDINGS * eps * float(np.abs(known_HS).max()), causal)

    @property
    def still(self) -> bool:
        """Whether nothing is added that depends on the offset."""
        return not np.any(np.abs(self.known_HS).max(0) > self.noise)

    def read(self, added_HM: Array, expected_M: Positions) -> Positions:
        """The offset of each key, or `none`."""
        apart_MS = np.abs(added_HM[:, :, None] - self.known_HS[:, None, :]).max(0)
        best_M = apart_MS.argmin(-1)
        told_M = np.clip(expected_M - self.offsets_S[0], 0, len(self.offsets_S) - 1)
        near_M, far_M = (np.take_along_axis(apart_MS, each[:, None], -1)[:, 0] for each in (best_M, told_M))
        best_M = np.where(far_M <= near_M + self.noise, told_M, best_M)
        between_SS = np.abs(self.known_HS[:, :, None] - self.known_HS[:, None, :]).max(0)
        gap_S = np.where(between_SS > self.noise, between_SS, np.inf).min(-1)
        near_M = np.take_along_axis(apart_MS, best_M[:, None], -1)[:, 0]
        fits_M = near_M <= np.maximum(np.where(np.isfinite(gap_S), gap_S, 0)[best_M] / 2, self.noise)
        return np.where(fits_M, self.offsets_S[best_M], self.none)
