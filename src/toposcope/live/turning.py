"""By what angle each channel pair of an attention has turned, from vectors of one content at several positions.

A turn keeps the length of a pair, whatever its frequency; so it is seen which channels belong together as the running
model holds them (MLA and others reorder them) before anything is said about frequencies.
Shapes: P positions, H heads, R head width, F channel pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Rotary
from toposcope.encodings.rotary import channel_pairs
from toposcope.live.ruler import Array

_KEPT = 0.1  # the length of a pair may vary by so much: rounding leaves 0.02 in bfloat16, other partners 0.3 and more
_ANGLE = {"float64": 2e-5, "float32": 2e-5, "bfloat16": 8e-3, "float16": 2e-3}  # rounding of a turned vector
_FITS = 4.0  # roundings, on the average of all pairs
_SLOW = 10  # roundings
_FLOAT32 = 2.0**-22  # the angle itself is a product in float32


@dataclass(frozen=True, eq=False)
class Turned:
    """The angles of all pairs at some positions, and how much each pair weighs among the vectors."""

    at_P: Array
    angle_PF: Array
    weight_F: Array
    dtype: str  # of the model

    def misfit_F(self, frequencies_F: Array) -> Array:
        """How far each pair is from turning by these frequencies, in units of rounding (1 and less: it fits)."""
        told_PF = self.at_P[:, None] * frequencies_F
        away_PF = np.abs((self.angle_PF - told_PF + np.pi) % (2 * np.pi) - np.pi)
        allowed_PF = _ANGLE[self.dtype] + np.abs(told_PF) * _FLOAT32
        found: Array = np.sqrt(((away_PF / allowed_PF) ** 2).mean(0))
        return found

    def misfit(self, frequencies_F: Array) -> float:
        """The same of all pairs, by their weight."""
        return float(np.sqrt((self.misfit_F(frequencies_F) ** 2 * self.weight_F).sum()))

    def fits(self, frequencies_F: Array) -> bool:
        """Whether the pairs turn by these frequencies."""
        return self.misfit(frequencies_F) <= _FITS

    def best(self, hypotheses: Mapping[str, Array], expected: str) -> str | None:
        """Which of the frequencies fit: the expected ones unless others fit clearly better; None where none do."""
        misfits = {name: self.misfit(frequencies_F) for name, frequencies_F in hypotheses.items()}
        nearest = min(misfits, key=lambda name: misfits[name])
        chosen = expected if misfits[expected] <= max(1.0, 2 * misfits[nearest]) else nearest
        return chosen if misfits[chosen] <= _FITS else None


def tells_F(frequencies_F: Array, farthest: int, dtype: str) -> NDArray[np.bool_]:
    """Which pairs turn by so much more than rounding that they can be asked whether they turn at all."""
    return np.asarray(farthest * np.abs(frequencies_F) > _SLOW * _ANGLE[dtype])


def turned(vectors_PHR: Array, at_P: Array, rotary: Rotary, dtype: str) -> Turned | None:
    """The angles against the first vectors, at position 0; None where the channels that turn keep no lengths."""
    vectors_PHR, zero_HR, at_P = vectors_PHR[1:], vectors_PHR[0], at_P[1:]
    unread = rotary.decay_F is not None or zero_HR.shape[-1] != rotary.head_dim
    if unread or not (np.isfinite(vectors_PHR).all() and np.isfinite(zero_HR).all()):
        return None
    vectors_PHR, zero_HR = vectors_PHR[:, : rotary.turning_heads], zero_HR[: rotary.turning_heads]
    # queries may grow as wholes with their position (Llama 4, Ministral 3), which is not asked here
    grown_P = np.sqrt((vectors_PHR**2).sum((1, 2)) / max(float((zero_HR**2).sum()), 1e-300))
    vectors_PHR = vectors_PHR / np.where(grown_P > 0, grown_P, 1.0)[:, None, None]
    found = _layout(vectors_PHR, zero_HR, rotary)
    if _uneven(vectors_PHR, zero_HR, found) > _KEPT:
        return None
    zero_HF, seen_PHF = _complex(zero_HR, found), _complex(vectors_PHR, found)
    weight_F = (np.abs(zero_HF) ** 2).sum(0)
    angle_PF = np.angle((seen_PHF * zero_HF.conj()).sum(1))
    return Turned(np.asarray(at_P, dtype=np.float64), angle_PF, weight_F / weight_F.sum(), dtype)


def _layout(vectors_PHR: Array, zero_HR: Array, rotary: Rotary) -> NDArray[np.intp]:
    """The pairs that keep their lengths best, among those that move: what stands still keeps all lengths."""
    apart_R = np.sqrt(((vectors_PHR - zero_HR) ** 2).mean((0, 1)))
    moves = [(pairs_F2, float(apart_R[pairs_F2].mean())) for pairs_F2 in _layouts(rotary)]
    most = max(move for _, move in moves)
    moving = [pairs_F2 for pairs_F2, move in moves if move >= most / 2]
    return min(moving, key=lambda pairs_F2: _uneven(vectors_PHR, zero_HR, pairs_F2))


def _layouts(rotary: Rotary) -> Iterator[NDArray[np.intp]]:
    """The ways in which the pairs may lie in the running model: as described, or reordered within their block."""
    yield rotary.pairs_F2
    width = rotary.channels
    for offset in sorted({int(rotary.pairs_F2.min()), 0, rotary.head_dim - width}):
        if offset + width <= rotary.head_dim:
            yield channel_pairs(width, "half", offset)
            yield channel_pairs(width, "interleaved", offset)


def _complex(vectors_R: Array, pairs_F2: NDArray[np.intp]) -> NDArray[np.complex128]:
    return np.asarray(vectors_R[..., pairs_F2[:, 0]] + 1j * vectors_R[..., pairs_F2[:, 1]])


def _uneven(vectors_PHR: Array, zero_HR: Array, pairs_F2: NDArray[np.intp]) -> float:
    """How much the lengths of the pairs differ from those at position 0, relative to all lengths."""
    long_PHF, zero_HF = (np.abs(_complex(each, pairs_F2)) for each in (vectors_PHR, zero_HR))
    return float(np.sqrt(((long_PHF - zero_HF) ** 2).mean() / max((zero_HF**2).mean(), 1e-300)))
