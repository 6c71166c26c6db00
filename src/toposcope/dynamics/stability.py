"""How far a matrix is from having an eigenvalue on a vertical line: a certified lower bound, not a grid.

    beta_s(M) = min over real w of sigma_min(M - (s + i w) I)

is the 2-norm of the smallest complex perturbation that puts an eigenvalue of M on the line Re = s; with s = 0 and M
stable it is the distance to instability. A grid over w only gives an upper bound, which can be many times too large.

With A = M - s I the square F(w) = sigma_min(A - i w I)^2 is the least eigenvalue of A^T A + i w (A - A^T) + w^2 I:
but for w^2, that of a matrix linear in w, and so concave. Hence two facts:

* between a and b, where F is at least F_a and F_b, F lies above the chord of F - w^2: at a + x (b - a) it is at least
  (1 - x) F_a + x F_b - x (1 - x) (b - a)^2. Proofs at points are thereby a proof about the line;
* every vector y gives a parabola above F, |(A - i w) y|^2 / |y|^2. A few of them show where F is small.

The search uses the second fact, the proof the first. F is even, and beyond w = |skew M| it grows, as every parabola
does there: their lowest points lie at the values of Im y^* M y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.dynamics.pencil import EPS, STEPS, Pencil

Array = NDArray[np.float64]

TIGHTNESS = 0.85  # the proven bound is at least this share of the least value seen
MOST_SAMPLES = 4000  # proofs at points
SHAVED = 0.98  # of a guessed square, what a proof is tried with
PROMISING = 4  # lines that are compared
NEAR, SPREAD, EVEN = 8, 20, 8  # frequencies first looked at: near the line, of all eigenvalues, in even steps
ROUNDS = 6  # of looking between points that are too far apart
REACH = 24  # points further on to which one chord may go
LONGER = 8  # steps of a guess that turned out too high


@dataclass(frozen=True)
class LineDistance:
    """The distance to the line Re = s: proven to be at least `lower`, and at most `upper` (attained)."""

    s: float
    lower: float
    upper: float
    samples: int


def distance_to_line(matrix: Array | Pencil, s: float = 0.0, *, tightness: float = TIGHTNESS) -> LineDistance:
    """Certified bounds of beta_s(M) for a real square matrix."""
    pencil = matrix if isinstance(matrix, Pencil) else Pencil(matrix)
    if pencil.size == 0 or pencil.norm + abs(s) == 0.0:
        return LineDistance(s, 0.0, 0.0, 0)
    line = _Line(pencil, s)
    line.sharpen()
    return line.distance(tightness)


def best_line(matrix: Array | Pencil, least: float, most: float) -> LineDistance:
    """The line Re = s with least <= s < most that eigenvalues are furthest from: proof that some stay to its right.

    Candidates are `least` and the middles between neighbouring real parts; the most promising one is certified.
    """
    pencil = matrix if isinstance(matrix, Pencil) else Pencil(matrix)
    parts = np.unique(pencil.eigenvalues.real)
    edges = np.concatenate([[least], parts[(parts > least) & (parts <= most)]])
    candidates = np.unique(np.concatenate([[least], (edges[:-1] + edges[1:]) / 2]))
    candidates = candidates[(candidates >= least) & (candidates < most)]
    if not len(candidates):
        return LineDistance(least, 0.0, 0.0, 0)
    gaps = np.array([np.abs(parts - s).min() for s in candidates])
    promising = candidates[np.argsort(-gaps)[:PROMISING]]  # |Re lambda - s| bounds beta_s from above
    lines = [_Line(pencil, float(s)) for s in promising]
    _look(lines)
    while not (best := max(lines, key=lambda line: line.best)).sharp:
        best.sharpen()
    return best.distance(TIGHTNESS)


def least_between(a: float | Array, at_a: float | Array, b: float | Array, at_b: float | Array) -> Array:
    """What F is surely not below between a and b, where it is at least `at_a` and `at_b`; rounding is taken off."""
    square = np.maximum((b - a) ** 2, np.finfo(np.float64).tiny)
    share = np.clip((1 - (at_b - at_a) / square) / 2, 0.0, 1.0)
    chord = at_a + share * (at_b - at_a)
    return np.asarray(chord - share * (1 - share) * square - 8 * EPS * (at_a + at_b + square))


def _look(lines: Sequence[_Line]) -> None:
    """Look at several lines where they may be lowest, all in one go."""
    pencil = lines[0].pencil
    frequencies = [_near(pencil, line.s) for line in lines]
    guessed = pencil.guess(np.concatenate([line.s + 1j * w for line, w in zip(lines, frequencies, strict=True)]))
    ends = np.cumsum([len(w) for w in frequencies])[:-1]
    for line, w, squares, middles in zip(
        lines, frequencies, *(np.split(each, ends) for each in guessed), strict=True
    ):
        line.add(w, squares, middles)


def _near(pencil: Pencil, s: float) -> Array:
    """The frequencies of the eigenvalues nearest to the line: F dips there."""
    order = np.argsort(np.abs(pencil.eigenvalues.real - s), kind="stable")[: 2 * NEAR]  # with their conjugates
    return np.unique(np.abs(pencil.eigenvalues[order].imag))[:NEAR]


class _Line:
    """The squares F(w) on one line: parabolas above them, and proofs below."""

    def __init__(self, pencil: Pencil, s: float) -> None:
        self.pencil, self.s = pencil, s
        self.samples, self.sharp = 0, False
        self.best, self._goal = np.inf, np.inf  # the least value seen, and what is to be proven everywhere
        self._at, self._above, self._middles = np.empty(0), np.empty(0), np.empty(0)

    def distance(self, tightness: float) -> LineDistance:
        """The bounds, with a proof of the lower one."""
        lower = self._proven(tightness**2)
        return LineDistance(self.s, lower, float(np.sqrt(self.best)), self.samples)

    def add(self, frequencies: Array, squares: Array, middles: Array) -> None:
        """Vectors y with |(A - i w) y|^2 = `squares` at these w and Im y^* M y = `middles`."""
        self._at = np.concatenate([self._at, frequencies])
        self._above = np.concatenate([self._above, squares])
        self._middles = np.concatenate([self._middles, middles])
        self.best = min(self.best, float(squares.min()))

    def look(self, frequencies: Array, steps: int = STEPS) -> None:
        """Guess F at these w; each guess gives a parabola above F everywhere."""
        points = (self.s + 1j * frequencies).astype(np.complex128)
        self.add(frequencies, *self.pencil.guess(points, steps))

    def above(self, frequencies: Array) -> Array:
        """The lowest of the parabolas at each w: an upper bound of F, with what rounding may have taken off."""
        away, sums = frequencies[:, None] - self._at, frequencies[:, None] + self._at
        rounding = 8 * EPS * (self._above + np.abs(away) * sums)
        return np.asarray((self._above + away * (sums - 2 * self._middles) + rounding).min(axis=1))

    def sharpen(self) -> None:
        """Look all along the line, then where the parabolas are lowest."""
        self.sharp = True
        pencil = self.pencil
        spread = np.unique(np.abs(pencil.eigenvalues.imag))
        if len(spread) > SPREAD:
            spread = spread[np.linspace(0, len(spread) - 1, SPREAD).round().astype(int)]
        at = np.unique(np.concatenate([_near(pencil, self.s), spread, np.linspace(0.0, pencil.turning, EVEN)]))
        self.look(at[np.append(True, np.diff(at) > 1e-9 * pencil.norm)])
        at = np.sort(self._at)
        middles = (at[1:] + at[:-1]) / 2
        if len(middles):
            self.look(middles[np.argsort(self.above(middles))[:4]])

    def _proven(self, share: float) -> float:
        """A bound of sigma_min on the whole line: what is proven at points, and what chords say between them."""
        self._goal = share * self.best
        end = self.pencil.turning
        self.look(self._planned(end), LONGER)  # a proof that fails costs more than better guesses
        self._goal = share * self.best
        at = self._planned(end)
        proven = self._provable(at)
        ahead: list[tuple[float, float | None]] = [(float(w), proven.get(float(w))) for w in at[::-1]]
        a, at_a = 0.0, np.inf
        bound = np.inf
        while ahead:
            b, at_b = ahead.pop()
            if at_b is None:
                at_b = self._prove(b, share)
            if not at_b > 0 or self.samples >= MOST_SAMPLES:
                return 0.0
            between = float(least_between(a, at_a, b, at_b)) if b > a else at_b
            if between < self._goal:
                ahead += [(b, at_b), ((a + b) / 2, None)]
                continue
            bound = min(bound, between)
            a, at_a = b, at_b
        return float(np.sqrt(min(bound, self.best)))

    def _planned(self, end: float) -> Array:
        """Points between which the chords stay above the goal, if all is as guessed: as few as that takes."""
        for again in range(ROUNDS + 1):
            at = np.unique(np.concatenate([[0.0], self._at[self._at < end], [end]]))
            hoped = self._hoped(at)
            further = np.minimum(np.arange(len(at))[:, None] + 1 + np.arange(REACH), len(at) - 1)
            enough = least_between(at[:, None], hoped[:, None], at[further], hoped[further]) >= self._goal
            within = (hoped[:-1] > self._goal) & (hoped[1:] > self._goal)  # else points between are no help
            low = np.flatnonzero(within & ~enough[:-1, 0])
            if not len(low) or again == ROUNDS:
                break
            self.look((at[low] + at[low + 1]) / 2)
        far = np.where(enough.any(axis=1), REACH - enough[:, ::-1].argmax(axis=1), 1)
        chosen = [0]
        while chosen[-1] < len(at) - 1:
            chosen.append(min(chosen[-1] + int(far[chosen[-1]]), len(at) - 1))
        return at[chosen]

    def _hoped(self, frequencies: Array) -> Array:
        """What a proof may succeed with."""
        room = np.asarray(self.pencil.room(self.s**2 + frequencies**2))
        return SHAVED * self.above(frequencies) - 2 * room

    def _provable(self, frequencies: Array) -> dict[float, float]:
        """What is hoped at these w, where it is proven."""
        hoped = self._hoped(frequencies)
        high = hoped > self._goal
        frequencies, hoped = frequencies[high], hoped[high]
        if not len(hoped):
            return {}
        sure = self.pencil.surely_above(self.s + 1j * frequencies, hoped)
        self.samples += int(sure.sum())
        return dict(zip(frequencies[sure].tolist(), hoped[sure].tolist(), strict=True))

    def _prove(self, frequency: float, share: float) -> float:
        """What F is surely not below at this w: what is hoped, if that can be proven, else what it is."""
        z, at = complex(self.s, frequency), np.array([frequency])
        self.samples += 1
        hoped, before = float(self._hoped(at)[0]), np.inf
        while self._goal < hoped < 0.99 * before:
            if self.pencil.surely_above(z, hoped):
                return hoped
            self.look(at, LONGER)
            hoped, before = float(self._hoped(at)[0]), hoped
        value, floor = self.pencil.least(z)
        self.best = min(self.best, value**2)
        self._goal = min(self._goal, share * self.best, share * floor**2)
        return floor**2
