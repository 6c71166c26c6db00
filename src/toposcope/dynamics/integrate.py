"""Adaptive integration of dx/dt = f(x), with output at any time and events.

Steps are those of Dormand and Prince's pair (`dormand_prince`), their sizes those of a controller (`step_size`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.dynamics.dormand_prince import Field, Step, Stepper
from toposcope.dynamics.step_size import PIController, Tolerance, guessed_step, sizes_of

Array = NDArray[np.float64]
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
    was what held the steps back), or when the step falls below rounding.
    """
    if not (math.isfinite(begin) and math.isfinite(end) and end > begin):
        raise BadValue(f"cannot integrate from {begin:g} to {end:g}; the end must lie after the beginning.")
    tolerance = Tolerance(rtol, atol)
    state = np.array(start, dtype=np.float64, order="C")
    if not np.isfinite(state).all():
        raise BadValue("the start holds NaN or infinity.")
    output, watch, stiffness = _Output(times, state, begin, end), _Watch(events, begin, state), _Stiffness()
    time, ended, accepted, rejected, evaluations = begin, Ended.END, 0, 0, 1
    with np.errstate(over="ignore", invalid="ignore"):
        stepper, sizes = Stepper(field, state), sizes_of(state)
        if first_step is None:
            first_step = guessed_step(field, state, stepper.slope(state.shape), end - begin, tolerance)
            evaluations += 1
        control = PIController(first_step)
        while time < end:
            if evaluations + stepper.COST > max_evaluations:
                ended = Ended.STIFF if stiffness.now else Ended.EXHAUSTED
                break
            if control.step < 16 * np.spacing(max(abs(time), 1e-300)):
                ended, stiffness.ever = Ended.STIFF, True
                break
            width = control.width(end - time)
            after, error_estimate = stepper.attempt(state, width)
            evaluations += stepper.COST
            after_sizes = sizes_of(after)
            error = tolerance.ratio(error_estimate, sizes, after_sizes)
            if not error <= 1.0:  # also where it is not a number
                rejected += 1
                control.reject(width, error)
                continue
            accepted += 1
            stiffness.look(stepper.held_back(after, width))
            done = Step(time, end if width == end - time else time + width, state, after, stepper.stages)
            stop = watch.look(done)
            if stop is not None:
                done = done.cut(stop)
            output.take(done)
            if on_step is not None:
                on_step(done)
            time, state = done.end, done.after
            if stop is not None:
                ended = Ended.EVENT
                break
            control.accept(width, error)
            stepper.advance()
            sizes = after_sizes
    seen, states = output.finish(time, state)
    happened = tuple(watch.happened)
    return Solution(
        time, state, ended, happened, seen, states, evaluations, accepted, rejected, control.step, stiffness.ever
    )


class _Stiffness:
    """Counts steps that stability holds back; 15 of them make a system stiff, six free ones in a row forget them."""

    MANY, FREE = 15, 6

    def __init__(self) -> None:
        self._held, self._free, self.ever = 0, 0, False

    @property
    def now(self) -> bool:
        return self._held >= self.MANY

    def look(self, held_back: bool) -> None:
        if held_back:
            self._held, self._free = self._held + 1, 0
            self.ever = self.ever or self.now
        else:
            self._free += 1
            if self._free == self.FREE:
                self._held = 0


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
