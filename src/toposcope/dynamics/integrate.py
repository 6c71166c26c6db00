"""Adaptive integration of dx/dt = f(x) by Dormand and Prince's pair of orders 5 and 4.

One step of size h forms seven stages k_s = f(x + h sum_r a_sr k_r) and

    x_new = x + h sum_s b_s k_s,     error = h sum_s e_s k_s,

the last stage being the first of the next step. Inside a step Shampine's interpolant of order 4,

    x(t + s h) = x + h sum_s k_s (P_s1 s + P_s2 s^2 + P_s3 s^3 + P_s4 s^4),

gives the state at any time, so that asking for output never shortens a step. Step sizes follow the PI controller of
Hairer and Wanner. The error of a token is measured against that token's own size, so that a rotation of all tokens
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import dgemv

from toposcope.core.errors import BadValue

Array = NDArray[np.float64]
Field = Callable[[Array], Array]

_A = (
    np.array([1 / 5]),
    np.array([3 / 40, 9 / 40]),
    np.array([44 / 45, -56 / 15, 32 / 9]),
    np.array([19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729]),
    np.array([9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656]),
    np.array([35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84]),
)
_ERROR = np.array([71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40])
_DENSE = np.array(
    [
        [1, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432],
        [0, 0, 0, 0],
        [0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799],
        [0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072],
        [0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632],
        [0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844],
        [0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423],
    ]
)
_SAFETY, _SHRINK, _GROW = 0.9, 0.2, 10.0
_PI = 0.04  # weight of the last step's error in the controller
_STABLE = 3.25  # h |lambda| beyond which the pair of orders 5 and 4 is held back by stability, not by accuracy
_STIFF_STEPS = 15
MAX_EVALUATIONS = 6000


class Ended(StrEnum):
    """Why an integration ended; `meaning` is a sentence."""

    END = "end"
    EVENT = "event"
    STIFF = "stiff"
    EXHAUSTED = "exhausted"

    @property
    def meaning(self) -> str:
        return {
            Ended.END: "the end of the interval was reached",
            Ended.EVENT: "an event ended it",
            Ended.STIFF: "the equations turned stiff: steps shrank for stability, not for accuracy",
            Ended.EXHAUSTED: "the allowed evaluations were used up",
        }[self]


@dataclass(frozen=True)
class Event:
    """Something to watch: it happens when the function of time and state falls from above zero to zero or below."""

    name: str
    function: Callable[[float, Array], float]
    terminal: bool = True


@dataclass(frozen=True)
class Happened:
    """An event and the time at which it happened."""

    name: str
    time: float


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
        states = ((width * (powers_T4 @ _DENSE.T)) @ self.stages).reshape(len(share_T), *self.before.shape)
        states += self.before
        return states


@dataclass(frozen=True, eq=False)
class Solution:
    """Where an integration ended, why, and what it cost."""

    time: float
    state: Array
    ended: Ended
    events: tuple[Happened, ...]
    times: Array
    states: Array  # (times, *state)
    evaluations: int
    accepted: int
    rejected: int
    next_step: float
    stiff: bool


def integrate(
    field: Field,
    start: ArrayLike,
    end: float,
    *,
    begin: float = 0.0,
    times: ArrayLike | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    first_step: float | None = None,
    events: Sequence[Event] = (),
    on_step: Callable[[Step], None] | None = None,
    max_evaluations: int = MAX_EVALUATIONS,
) -> Solution:
    """Integrate dx/dt = f(x) from `begin` to `end`, with output at `times` (default: the end alone).

    A state of two axes holds tokens in rows, and errors are measured row by row: the root mean square of a row's
    error against atol + rtol (root mean square of the row). States of one axis are measured entry by entry.

    The field is called with arrays that are used again: one that keeps a state must copy it.
    It ends at `end`, at a terminal event, when `max_evaluations` calls of the field are used up (`stiff` if stability
    was what held the steps back, by Hairer's test on the last two stages), or when the step falls below rounding.
    """
    if not (math.isfinite(begin) and math.isfinite(end) and end > begin):
        raise BadValue(f"cannot integrate from {begin:g} to {end:g}; the end must lie after the beginning.")
    if not (rtol > 0 and atol >= 0 and math.isfinite(rtol + atol)):
        raise BadValue(f"tolerances must be positive, got rtol={rtol:g}, atol={atol:g}.")
    state = np.array(start, dtype=np.float64, order="C")
    if not np.isfinite(state).all():
        raise BadValue("the start holds NaN or infinity.")
    output = _Output(times, state, begin, end)
    watch = _Watch(events, begin, state)
    stages = np.empty((7, state.size))
    inner, sixth = np.empty(state.shape), np.empty(state.shape)  # every trial but the last of a step
    evaluations, accepted, rejected, held_back, free = 1, 0, 0, 0, 0
    time, stiff, last_error = begin, False, 1e-4
    ended = Ended.END
    with np.errstate(over="ignore", invalid="ignore"):
        stages[0] = field(state).ravel()
        sizes = _sizes(state)
        if first_step is None:
            step = _first_step(field, state, stages[0].reshape(state.shape), end - begin, rtol, atol)
            evaluations += 1
        else:
            step = first_step
        while time < end:
            if evaluations + 6 > max_evaluations:
                ended = Ended.STIFF if held_back >= _STIFF_STEPS else Ended.EXHAUSTED
                break
            if step < 16 * np.spacing(max(abs(time), 1e-300)):
                ended, stiff = Ended.STIFF, True
                break
            # A last step that would leave a sliver is split evenly, or stretched a little.
            left = end - time
            width = left if step >= 0.999 * left else left / 2 if step > left / 2 else step
            after = np.empty(state.shape)
            for s, trial in enumerate((inner, inner, inner, inner, sixth, after), 1):
                np.copyto(trial, state)
                _add(width, stages[:s], _A[s - 1], trial)
                stages[s] = field(trial).ravel()
            evaluations += 6
            inner[...] = 0
            _add(width, stages, _ERROR, inner)
            after_sizes = _sizes(after)
            error = _ratio(_sizes(inner), atol + rtol * np.maximum(sizes, after_sizes))
            if not error <= 1.0:  # also where it is not a number
                rejected += 1
                shrink = max(_SHRINK, _SAFETY * error**-0.2) if math.isfinite(error) else _SHRINK
                step = width * shrink
                continue
            accepted += 1
            moved, turned = _norm(np.subtract(after, sixth, out=sixth)), 0.0
            if moved > 0:
                turned = _norm(np.subtract(stages[6], stages[5], out=inner.reshape(-1)))
            if width * turned > _STABLE * moved:
                held_back, free = held_back + 1, 0
                stiff = stiff or held_back >= _STIFF_STEPS
            else:
                free += 1
                if free == 6:
                    held_back = 0
            done = Step(time, end if width == left else time + width, state, after, stages)
            stop = watch.look(done)
            if stop is not None:
                done = _cut(done, stop)
            output.take(done)
            if on_step is not None:
                on_step(done)
            time, state = done.end, done.after
            if stop is not None:
                ended = Ended.EVENT
                break
            floor = max(error, 1e-10)
            change = _SAFETY * floor ** -(0.2 - 0.75 * _PI) * last_error**_PI
            step, last_error = width * min(_GROW, max(_SHRINK, change)), max(error, 1e-4)
            stages[0], sizes = stages[6], after_sizes
    all_times, all_states = output.finish(time, state)
    return Solution(
        time, state, ended, tuple(watch.happened), all_times, all_states, evaluations, accepted, rejected, step, stiff
    )


def _add(width: float, stages: Array, weights: Array, to: Array) -> None:
    """Add width (sum_s weights_s stages_s) to an array, in place and in one pass."""
    if to.size:
        dgemv(width, stages.T, weights, 1.0, to.reshape(-1), overwrite_y=True)


def _norm(array: Array) -> float:
    flat = array.ravel()
    return math.sqrt(np.dot(flat, flat))


def _ratio(sizes: Array, allowed: Array) -> float:
    """The root mean square of sizes relative to what is allowed."""
    relative = sizes / allowed
    top = float(relative.max(initial=0.0))
    if top == 0:
        return 0.0
    relative /= top  # so that squares of huge ratios do not overflow
    return top * _norm(relative) / math.sqrt(relative.size)


def _sizes(state: Array) -> Array:
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


def _first_step(field: Field, state: Array, slope: Array, span: float, rtol: float, atol: float) -> float:
    """A first step from the sizes of state, slope and curvature (Hairer, Norsett and Wanner, II.4)."""
    allowed = atol + rtol * _sizes(state)
    size = _ratio(_sizes(state), allowed)
    speed = _ratio(_sizes(slope), allowed)
    small = 1e-6 if size < 1e-5 or speed < 1e-5 else 0.01 * size / speed
    small = min(small, span)
    bend = _ratio(_sizes(field(state + small * slope) - slope), allowed) / small
    most = max(speed, bend)
    good = max(1e-6, small * 1e-3) if not most > 1e-15 else (0.01 / most) ** 0.2
    return float(min(100 * small, good, span))


def _cut(step: Step, time: float) -> Step:
    """The part of a step up to a time inside it, with stages that give the same interpolant."""
    if time >= step.end:
        return step
    share = (time - step.begin) / (step.end - step.begin)
    # In s' = s / share the interpolant keeps its form with P scaled column by column; solve for such stages.
    wanted = _DENSE * share ** np.arange(4)
    stages = np.linalg.lstsq(_DENSE.T, wanted.T, rcond=None)[0] @ step.stages
    return Step(step.begin, time, step.before, step.at(time)[0], stages)


class _Output:
    """Collects states at the times asked for as steps pass over them."""

    def __init__(self, times: ArrayLike | None, start: Array, begin: float, end: float) -> None:
        self._wanted = None if times is None else np.asarray(times, dtype=np.float64).ravel()
        self._states: list[Array] = []
        self._next = 0
        if self._wanted is None:
            return
        wanted = self._wanted
        if len(wanted) and (np.diff(wanted) <= 0).any():
            raise BadValue("output times must increase.")
        if len(wanted) and not (begin <= wanted[0] and wanted[-1] <= end):
            raise BadValue(f"output times must lie between {begin:g} and {end:g}.")
        while self._next < len(wanted) and wanted[self._next] <= begin:
            self._states.append(start[None].copy())
            self._next += 1

    def take(self, step: Step) -> None:
        if self._wanted is None:
            return
        upto = int(np.searchsorted(self._wanted, step.end, side="right"))
        if upto > self._next:
            self._states.append(step.at(self._wanted[self._next : upto]))
            self._next = upto

    def finish(self, time: float, state: Array) -> tuple[Array, Array]:
        if self._wanted is None:
            return np.array([time]), state[None].copy()
        if not self._states:
            return np.zeros(0), np.zeros((0, *state.shape))
        return self._wanted[: self._next], np.concatenate(self._states)


class _Watch:
    """Looks for events in each step and finds their times on the interpolant."""

    def __init__(self, events: Sequence[Event], begin: float, start: Array) -> None:
        self._events = events
        self._values = [event.function(begin, start) for event in events]
        self.happened: list[Happened] = []

    def look(self, step: Step) -> float | None:
        """The time of the first terminal event in this step, if there is one."""
        found: list[tuple[float, Event]] = []
        for i, event in enumerate(self._events):
            value = event.function(step.end, step.after)
            if self._values[i] > 0 >= value:
                found.append((_locate(event, step), event))
            self._values[i] = value
        stop: float | None = None
        for time, event in sorted(found, key=lambda pair: pair[0]):
            self.happened.append(Happened(event.name, time))
            if event.terminal:
                stop = time
                break
        return stop


def _locate(event: Event, step: Step) -> float:
    """Bisection on the interpolant, to rounding of the time or a billionth of the step."""
    low, high = step.begin, step.end
    tolerance = 1e-9 * (high - low)
    while high - low > tolerance:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if event.function(middle, step.at(middle)[0]) > 0:
            low = middle
        else:
            high = middle
    return high
