"""Dormand and Prince's Runge-Kutta pair of orders 5 and 4: its tableau, and steps taken with it.

One step of size h forms seven stages k_s = f(x + h sum_r a_sr k_r) and

    x_new = x + h sum_s b_s k_s,     error = h sum_s e_s k_s,

the last stage being the first of the next step, for b is the last row of a. Inside a step an interpolant of order 4,

    x(t + s h) = x + h sum_s k_s (P_s1 s + P_s2 s^2 + P_s3 s^3 + P_s4 s^4),

gives the state at any time, so that asking for output never shortens a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import dgemv

Array = NDArray[np.float64]
Field = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Tableau:
    """An explicit Runge-Kutta pair whose last stage is the first of the next step.

    `a` holds one row for each stage but the first, the last of them being b; `error` are the weights e of the error,
    `dense` the P of the interpolant; beyond h |lambda| = `stable` it is stability that holds steps back.
    """

    a: tuple[Array, ...]
    error: Array
    dense: Array
    stable: float


DORMAND_PRINCE = Tableau(
    a=(
        np.array([1 / 5]),
        np.array([3 / 40, 9 / 40]),
        np.array([44 / 45, -56 / 15, 32 / 9]),
        np.array([19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729]),
        np.array([9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656]),
        np.array([35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84]),
    ),
    error=np.array([71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40]),
    dense=np.array(
        [
            [1, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432],
            [0, 0, 0, 0],
            [0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799],
            [0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072],
            [0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632],
            [0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844],
            [0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423],
        ]
    ),
    stable=3.25,
)
"""The pair RK5(4)7M of J. R. Dormand and P. J. Prince, "A family of embedded Runge-Kutta formulae", Journal of
Computational and Applied Mathematics 6 (1980), 19-26, with the interpolant of L. F. Shampine, "Some practical
Runge-Kutta formulas", Mathematics of Computation 46 (1986), 135-150."""


@dataclass(frozen=True, eq=False)
class Polynomial:
    """The states inside a step, as a polynomial of fourth degree in the share of it that is done."""

    begin: float
    end: float
    factors: Array  # (5, *state), of the powers from 0 to 4: the first is the state where the step begins

    def at(self, times: ArrayLike, out: Array | None = None) -> Array:
        """States at the given times, shape (times, *state)."""
        share_T = (np.atleast_1d(np.asarray(times, dtype=np.float64)) - self.begin) / (self.end - self.begin)
        states = np.empty((len(share_T), *self.factors.shape[1:])) if out is None else out
        np.matmul(share_T[:, None] ** np.arange(5), self.factors.reshape(5, -1), out=states.reshape(len(share_T), -1))
        return states


@dataclass(frozen=True, eq=False)
class Step:
    """One accepted step from `begin` to `end`; `at` gives the state between them."""

    begin: float
    end: float
    before: Array
    after: Array
    stages: Array  # (7, size): reused by the next step, so ask now or copy

    def at(self, times: ArrayLike) -> Array:
        """States at the given times inside the step, shape (times, *state)."""
        width = self.end - self.begin
        share_T = (np.atleast_1d(np.asarray(times, dtype=np.float64)) - self.begin) / width
        powers_T4 = share_T[:, None] ** np.arange(1, 5)
        weights_T7 = width * (powers_T4 @ DORMAND_PRINCE.dense.T)
        states = (weights_T7 @ self.stages).reshape(len(share_T), *self.before.shape)
        states += self.before
        return states

    def polynomial(self, factors: Array) -> Polynomial:
        """The step in a form that lasts beyond the next one, its factors written into this array (5, *state)."""
        factors[0] = self.before
        np.matmul((self.end - self.begin) * DORMAND_PRINCE.dense.T, self.stages, out=factors[1:].reshape(4, -1))
        return Polynomial(self.begin, self.end, factors)

    def cut(self, time: float) -> Step:
        """The part of the step up to a time inside it, with stages that give the same interpolant."""
        if time >= self.end:
            return self
        share = (time - self.begin) / (self.end - self.begin)
        # In s' = s / share the interpolant keeps its form with P scaled column by column; solve for such stages.
        dense = DORMAND_PRINCE.dense
        wanted = dense * share ** np.arange(4)
        stages = np.linalg.lstsq(dense.T, wanted.T, rcond=None)[0] @ self.stages
        return Step(self.begin, time, self.before, self.at(time)[0], stages)


class Stepper:
    """Tries steps of a field with Dormand and Prince's pair, in arrays that it uses again."""

    COST = 6  # evaluations of the field for each try

    def __init__(self, field: Field, state: Array) -> None:
        self._field = field
        self.stages = np.empty((7, state.size))
        self._inner, self._sixth = np.empty(state.shape), np.empty(state.shape)
        self.stages[0] = field(state).ravel()

    def slope(self, shape: tuple[int, ...]) -> Array:
        """dx/dt where the step begins."""
        return self.stages[0].reshape(shape)

    def attempt(self, state: Array, width: float) -> tuple[Array, Array]:
        """The state after a step of this width, and the estimate of its error, which holds until the next call."""
        after = np.empty(state.shape)
        inner = self._inner
        for s, trial in enumerate((inner, inner, inner, inner, self._sixth, after), 1):
            np.copyto(trial, state)
            _add(width, self.stages[:s], DORMAND_PRINCE.a[s - 1], trial)
            self.stages[s] = self._field(trial).ravel()
        inner[...] = 0
        _add(width, self.stages, DORMAND_PRINCE.error, inner)
        return after, inner

    def held_back(self, after: Array, width: float) -> bool:
        """Whether stability holds the step back: h |lambda| is too large, estimated from the last two stages.

        Hairer and Wanner, "Solving Ordinary Differential Equations II", IV.2. It overwrites the error's estimate.
        """
        moved, turned = norm(np.subtract(after, self._sixth, out=self._sixth)), 0.0
        if moved > 0:
            turned = norm(np.subtract(self.stages[6], self.stages[5], out=self._inner.reshape(-1)))
        return width * turned > DORMAND_PRINCE.stable * moved

    def advance(self) -> None:
        """Begin the next step where the last one ended."""
        self.stages[0] = self.stages[6]


def norm(array: Array) -> float:
    """The root of the sum of squares."""
    flat = array.ravel()
    return math.sqrt(np.dot(flat, flat))


def _add(width: float, stages: Array, weights: Array, to: Array) -> None:
    """Add width (sum_s weights_s stages_s) to an array, in place and in one pass."""
    if to.size:
        dgemv(width, stages.T, weights, 1.0, to.reshape(-1), overwrite_y=True)
