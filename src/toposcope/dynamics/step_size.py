"""How large the steps of an integration are: what error is allowed, and the controller that keeps to it.

The error of a token is measured against that token's own size, so that a rotation of all tokens changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.dynamics.dormand_prince import Field, norm

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Tolerance:
    """A row's error may be atol + rtol (root mean square of the row); states of one axis are measured by entries."""

    rtol: float
    atol: float

    def __post_init__(self) -> None:
        if not (self.rtol > 0 and self.atol >= 0 and math.isfinite(self.rtol + self.atol)):
            raise BadValue(f"tolerances must be positive, got rtol={self.rtol:g}, atol={self.atol:g}.")

    def ratio(self, error: Array, *sizes: Array) -> float:
        """An error relative to what is allowed for rows of these sizes, the larger of several: at most 1 is good."""
        return ratio(sizes_of(error), self.atol + self.rtol * (np.maximum(*sizes) if len(sizes) > 1 else sizes[0]))


@dataclass
class PIController:
    """The width of the next step, from the errors of the last two (Gustafsson's proportional-integral control).

        h_new = h safety error^-(1/5 - 3/4 beta) last_error^beta

    Constants are those of dopri5 in Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations I"; a failed
    step is tried again by error^-1/5 alone.
    """

    step: float
    last_error: float = 1e-4
    safety: float = 0.9
    beta: float = 0.04
    least: float = 0.2
    most: float = 10.0

    def width(self, left: float) -> float:
        """The step to try; a last one that would leave a sliver is split evenly, or stretched a little."""
        return left if self.step >= 0.999 * left else left / 2 if self.step > left / 2 else self.step

    def reject(self, width: float, error: float) -> None:
        """A step of this width failed."""
        shrink = max(self.least, self.safety * error**-0.2) if math.isfinite(error) else self.least
        self.step = width * shrink

    def accept(self, width: float, error: float) -> None:
        """A step of this width was good."""
        change = self.safety * max(error, 1e-10) ** -(0.2 - 0.75 * self.beta) * self.last_error**self.beta
        self.step, self.last_error = width * min(self.most, max(self.least, change)), max(error, 1e-4)


def guessed_step(field: Field, state: Array, slope: Array, span: float, tolerance: Tolerance) -> float:
    """A first step from the sizes of state, slope and curvature (Hairer, Norsett and Wanner, II.4)."""
    sizes = sizes_of(state)
    size = tolerance.ratio(state, sizes)
    speed = tolerance.ratio(slope, sizes)
    small = 1e-6 if size < 1e-5 or speed < 1e-5 else 0.01 * size / speed
    small = min(small, span)
    bend = tolerance.ratio(field(state + small * slope) - slope, sizes) / small
    most = max(speed, bend)
    good = max(1e-6, small * 1e-3) if not most > 1e-15 else (0.01 / most) ** 0.2
    return float(min(100 * small, good, span))


def sizes_of(state: Array) -> Array:
    """What an error is measured by: the root mean square of every row, or every entry where there is one axis."""
    if state.ndim < 2:
        return np.abs(state)
    squares = np.einsum("...d,...d->...", state, state) / max(state.shape[-1], 1)
    if not state.size or 1e-200 < squares.max() < 1e200:
        return np.sqrt(squares)
    top = np.abs(state).max()  # squares would leave the range of float64
    if top == 0:
        return np.zeros(state.shape[:-1])
    return np.sqrt(np.mean((state / top) ** 2, axis=-1)) * top


def ratio(sizes: Array, allowed: Array) -> float:
    """The root mean square of sizes relative to what is allowed."""
    relative = sizes / allowed
    top = float(relative.max(initial=0.0))
    if top == 0:
        return 0.0
    relative /= top  # so that squares of huge ratios do not overflow
    return top * norm(relative) / math.sqrt(relative.size)
