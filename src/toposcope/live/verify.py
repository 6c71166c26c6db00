"""Hold vectors that were seen against a hypothesis: by how much angles, lengths and unturned channels are off.

What is allowed grows with the angle (float32 rounds it) and depends on the precision of the vectors: thresholds were
measured on sound models, whose worst use of them is half (bfloat16).
Shapes: T contents, P positions, H heads, R head width, F channel pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer
from toposcope.encodings.record import Array
from toposcope.live import fit
from toposcope.live.hypotheses import Asked, TurnHypothesis, changed, configured
from toposcope.live.recover import ROUNDING, RecoveredSide

ANGLE = {"float64": 1e-6, "float32": 2e-5, "bfloat16": 8e-3, "float16": 2e-3}  # radians
LENGTH = {"float64": 1e-6, "float32": 1e-5, "bfloat16": 8e-3, "float16": 2e-3}
BY_ANGLE = 2.0**-22  # of the angle itself
MATTERS = 0.1  # radians from which on a wrong angle is said to matter
_CLEAR = 2.0  # how much worse the next hypothesis of another name must be


@dataclass(frozen=True, eq=False)
class Held:
    """Vectors beside a hypothesis. `channel_of_row` says where a stored row of the head lies while the model runs."""

    hypothesis: TurnHypothesis
    turning: fit.Turning
    error_PF: Array  # radians
    allowed_PF: Array
    length_error: float
    remainder: float
    elsewhere: float  # movement of channels that should not turn, relative to their size
    misfit: float  # root of the share of all energy that it leaves
    fits: bool

    @property
    def worst(self) -> float:
        return float(self.error_PF.max(initial=0.0))

    @property
    def share(self) -> float:
        """The largest part of what is allowed that was used."""
        return float((self.error_PF / self.allowed_PF).max(initial=0.0))


class Comparison:
    """One side of one layer, and every hypothesis that is held against it."""

    def __init__(self, side: RecoveredSide, asked: Asked, dtype: str, *, heads: slice | None = None) -> None:
        self.asked, self.dtype = asked, dtype
        whole = side if heads is None else replace(side, vectors_TPHR=side.vectors_TPHR[:, :, heads])
        self.side = whole
        self._turnings: dict[bytes, fit.Turning] = {}
        self.layouts = tuple(_layouts(side, asked))

    @cached_property
    def _x(self) -> Array:
        return np.asarray(self.side.vectors_TPHR, dtype=np.float64)

    @cached_property
    def _left_PR(self) -> Array:
        """What each channel would leave if it only grew."""
        grown = self._x[:, :1] * self.asked.growth_P[:, None, None]
        return np.asarray(((self._x - grown) ** 2).sum((0, 2)))

    @cached_property
    def _energy_R(self) -> Array:
        return np.asarray((self._x[:, 0] ** 2).sum((0, 1)))

    @cached_property
    def _energy(self) -> float:
        return float((self._x**2).sum())

    @cached_property
    def _still_R(self) -> Array:
        """Movement of each channel beyond growth, relative to its size, at most."""
        tiny = 1e-18 * max(float(self._energy_R.max(initial=0.0)), 1e-300)
        return np.sqrt(self._left_PR.max(axis=0) / np.maximum(self._energy_R, tiny))

    def _turning(self, pairs_F2: NDArray[np.intp]) -> fit.Turning:
        key = pairs_F2.tobytes()
        if key not in self._turnings:
            self._turnings[key] = fit.turning(self._x, pairs_F2)
        return self._turnings[key]

    @cached_property
    def expected(self) -> Held:
        """Beside what the configuration says."""
        return self.held(configured(self.asked))

    def held(self, hypothesis: TurnHypothesis) -> Held:
        """Beside one hypothesis, in the layout of channels that suits it best."""
        all_held = [self._held(hypothesis, layout) for layout in self.layouts]
        return min(all_held, key=lambda each: (not each.fits, each.misfit))

    def _held(self, hypothesis: TurnHypothesis, channel_of_row: NDArray[np.intp]) -> Held:
        if hypothesis.pairs_F2.size and hypothesis.pairs_F2.max() >= len(channel_of_row):
            return self._nothing(hypothesis)
        pairs_F2 = channel_of_row[hypothesis.pairs_F2].reshape(-1, 2)
        found = self._turning(pairs_F2)
        others = np.setdiff1d(np.arange(self._x.shape[-1]), pairs_F2)
        ratio_PF = found.gain_PF / hypothesis.gain_PF
        error_PF = np.abs(np.angle(ratio_PF))
        allowed_PF = self._allowed(hypothesis)
        length_error = float(np.abs(np.abs(ratio_PF) - 1).max(initial=0.0))
        remainder_PF = found.remainder_PF / np.maximum(np.abs(hypothesis.gain_PF), 1e-300)
        elsewhere = float(self._still_R[others].max(initial=0.0))
        left = found.misfit_PF(np.angle(hypothesis.gain_PF), np.abs(hypothesis.gain_PF)).sum()
        left += self._left_PR[:, others].sum()
        fits = (
            bool((error_PF <= allowed_PF + 0.5 * np.minimum(remainder_PF, self.noise)).all())
            and length_error <= 3 * LENGTH[self.dtype]
            and float(remainder_PF.max(initial=0.0)) <= self.noise
            and elsewhere <= self.floor
        )
        misfit = float(np.sqrt(max(float(left), 0.0) / max(self._energy, 1e-300)))
        remainder = float(remainder_PF.max(initial=0.0))
        return Held(hypothesis, found, error_PF, allowed_PF, length_error, remainder, elsewhere, misfit, fits)

    def _nothing(self, hypothesis: TurnHypothesis) -> Held:
        none = np.zeros((len(self.asked.positions_P), 0))
        empty = self._turning(np.zeros((0, 2), dtype=np.intp))
        return Held(hypothesis, empty, none, none, np.inf, np.inf, np.inf, np.inf, fits=False)

    @property
    def noise(self) -> float:
        """How much of a pair's movement may be no turning."""
        return 4 * LENGTH[self.dtype]

    @property
    def floor(self) -> float:
        """How far a channel that should not turn may move."""
        return 8 * ROUNDING[self.dtype] if self.side.floor is None else self.side.floor

    def _allowed(self, hypothesis: TurnHypothesis) -> Array:
        step_P1 = (self.asked.positions_P - self.asked.positions_P[0])[:, None]
        frequency_F = hypothesis.frequency_F
        if frequency_F is None:
            rotary = self.asked.rotary
            frequency_F = np.zeros(hypothesis.gain_PF.shape[1]) if rotary is None else rotary.frequencies(1)
        return np.asarray(ANGLE[self.dtype] + step_P1 * np.abs(frequency_F) * BY_ANGLE)

    # ---------------------------------------------------------------- naming
    @cached_property
    def free(self) -> float:
        """The misfit of pairs and frequencies that were fitted freely."""
        pairs_F2, frequency_F = self.side.pairs_F2, self.side.frequency_F
        hypothesis = TurnHypothesis("", None, pairs_F2, self.asked.gain(frequency_F), frequency_F)
        return self._held(hypothesis, np.arange(self._x.shape[-1])).misfit

    def named(self) -> Held | None:
        """The hypothesis that explains the vectors, and no other beside it; None where none does."""
        every = (self.held(each) for each in changed(self.asked))
        tried = [each for each in every if not self._same(each, self.expected)]
        if not tried:
            return None
        best = min(tried, key=lambda each: each.misfit)
        alike = next(each for each in tried if self._same(each, best))  # the first of those that say the same
        if not (alike.fits or alike.misfit <= 3 * self.free):
            return None
        rivals = [self.expected, *tried]
        for rival in rivals:
            other = rival.hypothesis.bug != alike.hypothesis.bug or rival is self.expected
            if other and not self._same(rival, alike) and rival.misfit < _CLEAR * alike.misfit:
                return None
        return alike

    def _same(self, one: Held, other: Held) -> bool:
        a, b = one.hypothesis, other.hypothesis
        if a is b:
            return True
        if a.pairs_F2.shape != b.pairs_F2.shape or not np.array_equal(a.pairs_F2, b.pairs_F2):
            return False
        return bool(np.abs(a.gain_PF - b.gain_PF).max(initial=0.0) < 0.5 * ANGLE[self.dtype])


def _layouts(side: RecoveredSide, asked: Asked) -> Iterator[NDArray[np.intp]]:
    """Where each stored row lies while the model runs: known, or as stored, or even rows before odd ones."""
    width = side.vectors_TPHR.shape[-1]
    if (side.row_R >= 0).all():
        yield np.argsort(side.row_R)
        return
    lies = np.arange(width)
    yield lies
    rotary = asked.rotary
    if rotary is not None and rotary.pairing == "interleaved" and rotary.pairs_F2.size:
        first, count = int(rotary.pairs_F2.min()), len(rotary.pairs_F2)
        block = np.arange(first, first + 2 * count)
        moved = lies.copy()
        if block[-1] < width:
            moved[block[::2]], moved[block[1::2]] = block[:count], block[count:]
            yield moved


def undone_norm(side: RecoveredSide, layer: Layer, which: str) -> RecoveredSide:
    """The side without the gains of a norm that stands behind the rotation, where the layer has one."""
    if not layer.spec.qk_norm_after:
        return side
    norm = layer.weights.q_norm if which == "queries" else layer.weights.k_norm
    if norm is None or norm.gain is None:
        return side
    heads = side.vectors_TPHR.shape[2]
    gain_HR = np.repeat(norm.gain, max(heads // len(norm.gain), 1), axis=0)
    if gain_HR.shape != side.vectors_TPHR.shape[2:] or (gain_HR == 0).any():
        return side
    shift = 0.0 if norm.bias is None else np.repeat(norm.bias, max(heads // len(norm.bias), 1), axis=0)
    return replace(side, vectors_TPHR=(side.vectors_TPHR - shift) / gain_HR)
