"""Runs a problem: integrates it, keeps states at even times, watches for events, and measures what was kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue
from toposcope.dynamics.dormand_prince import Polynomial, Step
from toposcope.dynamics.fields import AttentionField
from toposcope.dynamics.integrate import MAX_EVALUATIONS, Ended, Event, Happened, integrate
from toposcope.dynamics.observables import measure_all, norms, rms, thinned
from toposcope.dynamics.regime import Regime
from toposcope.dynamics.trajectory import FlowEvent, Status, Trajectory

Array = NDArray[np.float64]

SAMPLES = 121
MOST_HEAVY = 25  # of these moments, those at which all pairs of tokens are looked at
GROWTH_CAP = 1e4
CONVERGED = 1e-6  # of the start's largest distance from the limit
REST_CHANGE = 0.05  # at rest: at this pace tokens would move by less, relative to their size, in the whole run
REST_SHARE = 0.2  # and that for this share of the run
MOST_KEPT = 2.5e7  # numbers kept of the states while running (200 MB)
MOST_SAVED = 4e6  # numbers kept of the trajectories in a result
AT_ONCE = 300_000  # numbers of the states that are formed and measured together
ALLOTTED = 4_000_000  # numbers of memory that are asked for together


@dataclass(frozen=True, eq=False)
class Piece:
    """A stretch of time under one field; `after` is applied to the state at its end (a post-norm, say)."""

    make: Callable[[], AttentionField]
    duration: float = math.inf
    after: Callable[[Array], Array] | None = None
    name: str = ""


@dataclass(frozen=True, eq=False)
class Problem:
    """A flow to be run: where it starts, what drives it, where a theorem says it tends to, and for how long.

    `pieces` follow each other in time and start again after the last. `limit` is the state that T6 and T9 name (zero
    where None). `decide` gives the verdict of `regime` on these weights, `pair_matrix` the A of the pair forms.
    """

    title: str
    start: Array
    pieces: Sequence[Piece]
    horizon: float
    limit: Array | None = None
    decide: Callable[[], Regime | None] = lambda: None
    pair_matrix: Array | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def run(
    problem: Problem,
    *,
    horizon: float | None = None,
    times: ArrayLike | None = None,
    samples: int = SAMPLES,
    rtol: float = 1e-6,
    atol: float | None = None,
    growth_cap: float = GROWTH_CAP,
    max_evaluations: int = MAX_EVALUATIONS,
    tick: Callable[[float], None] = lambda share: None,
) -> Trajectory:
    """Integrate a problem and measure it; `tick` is told the share of the horizon that is done.

    The run stops when every token is within a millionth of the limit, when the largest has grown `growth_cap`-fold,
    when the equations turn stiff, or when `max_evaluations` calls of the field are used up. `atol` is 1e-9 of the
    start's size unless given. States are kept at `times`, or at up to `samples` even times of the part that was run.
    """
    end = problem.horizon if horizon is None else float(horizon)
    _check(end, samples, growth_cap, max_evaluations)
    start = np.asarray(problem.start, dtype=np.float64)
    limit = np.zeros_like(start) if problem.limit is None else problem.limit
    size = float(norms(start - limit).max())
    absolute = atol if atol is not None else 1e-9 * (size or 1.0)
    samples = int(min(samples, max(16, MOST_KEPT / start.size)))
    pieced = len(problem.pieces) > 1
    if pieced and times is None:
        per_piece = max(1, round((samples - 1) / max(end, 1)))
        apart = 1 / per_piece if end < samples else math.ceil(end / (samples - 1))
        times = np.unique(np.concatenate([np.arange(0, end, apart), [end]]))
    keeper = _Keeper(start, end, samples, times)
    events = _events(limit, size, growth_cap, start)
    measured: list[dict[str, Array]] = []  # of the states of one field each
    look = partial(measure_all, size_at_start=rms(start), pair_matrix=problem.pair_matrix)
    state, time, evaluations, accepted, rejected = start, 0.0, 0, 0, 0
    happened: list[Happened] = []
    ended, number, step, the_field = Ended.END, 0, None, None
    while size > 0 and time < end and ended is Ended.END:
        piece = problem.pieces[number % len(problem.pieces)]
        the_field = piece.make()
        stop = min(end, time + piece.duration)

        def watch(done: Step) -> None:
            keeper.take(done)
            tick(done.end / end)

        solved = integrate(
            the_field,
            state,
            stop,
            begin=time,
            rtol=rtol,
            atol=absolute,
            first_step=None if step is None else min(step, stop - time),
            events=events,
            on_step=watch,
            max_evaluations=max_evaluations - evaluations,
        )
        time, state, ended, step = solved.time, solved.state, solved.ended, solved.next_step
        evaluations += solved.evaluations
        accepted, rejected = accepted + solved.accepted, rejected + solved.rejected
        happened += solved.events
        if piece.after is not None and ended is Ended.END:
            state = piece.after(state)
        if ended is Ended.END and evaluations + 8 > max_evaluations and time < end:
            ended = Ended.EXHAUSTED
        keeper.close(time, state, final=ended is not Ended.END or time >= end)
        if pieced:
            seen = sum(len(part["norm_max"]) for part in measured)
            measured += [look(states_TND, field=the_field) for states_TND in keeper.states(seen)]
        number += 1
    if the_field is None:  # every token starts at its limit
        the_field = problem.pieces[0].make()
        happened.append(Happened("converged", 0.0))
        ended = Ended.EVENT
    all_times = keeper.times()
    kept_tokens = thinned(len(start), max(8, int(MOST_SAVED / (len(all_times) * start.shape[1]))))
    tokens, observables, sizes, plateaus = _gone_through(
        keeper, kept_tokens, limit, measured, partial(look, field=the_field)
    )
    status, words = _status(ended, happened, all_times, plateaus, growth_cap)
    ratios = _log_ratio(norms(state - limit), norms(start - limit))
    speed = float(norms(the_field(state)).max())
    now = float(norms(state - limit).max())
    return Trajectory(
        title=problem.title,
        status=status,
        times=all_times,
        tokens=tokens,
        token_numbers=kept_tokens,
        observables=observables,
        events=tuple(words),
        final=state,
        log_growth=0.0 if size == 0 else float(_log_ratio(np.array([now]), np.array([size]))[0]),
        growth_rate=_slope(all_times, sizes),
        token_log_growth=ratios,
        evaluations=evaluations,
        accepted=accepted,
        rejected=rejected,
        speed=speed / now if now > 0 else 0.0,
        settings={
            **problem.settings,
            "beta": the_field.beta(),
            "horizon": end,
            "rtol": rtol,
            "atol": absolute,
            "growth_cap": growth_cap,
            "max_evaluations": max_evaluations,
        },
        notes=problem.notes,
    )


def _check(end: float, samples: int, growth_cap: float, max_evaluations: int) -> None:
    if not (math.isfinite(end) and end > 0):
        raise BadValue(f"the horizon must be a positive number, got {end:g}.")
    if samples < 2:
        raise BadValue(f"at least 2 samples are needed, got {samples}.")
    if not 1 < growth_cap <= 1e300:
        raise BadValue(f"the growth cap must lie between 1 and 1e300, got {growth_cap:g}.")
    if max_evaluations < 8:
        raise BadValue(f"a single step takes 8 evaluations; {max_evaluations} allow none. Give at least 8.")


def _gone_through(
    keeper: _Keeper,
    kept_tokens: NDArray[np.intp],
    limit: Array,
    measured: list[dict[str, Array]],
    look: Callable[..., dict[str, Array]],
) -> tuple[Array, dict[str, Array], Array, list[tuple[int, int]]]:
    """All that is asked of the states, in one pass: tokens, observables, largest distances from the limit, plateaus.

    What is `measured` already, because it needs the field of its piece, is not measured again.
    """
    times = keeper.times()
    heavy_T = np.isin(np.arange(len(times)), thinned(len(times), MOST_HEAVY))
    parts = list(measured)
    sizes = np.concatenate([part["norm_max"] for part in parts]) if parts else np.empty(len(times))
    tokens_TKD = np.empty((len(times), len(kept_tokens), limit.shape[1]))
    pace, begin = _Pace(times), 0
    for states_TND in keeper.states():
        some = slice(begin, begin + len(states_TND))
        if not measured:
            parts.append(look(states_TND, heavy_T=heavy_T[some]))
            sizes[some] = parts[-1]["norm_max"]
        if limit.any():
            sizes[some] = [norms(state - limit).max() for state in states_TND]
        np.take(states_TND, kept_tokens, axis=1, out=tokens_TKD[some], mode="clip")  # this mode makes no copy between
        pace.look(states_TND, sizes[some])
        begin = some.stop
    observables = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return tokens_TKD, observables, sizes, pace.plateaus()


def _events(limit: Array, size: float, growth_cap: float, start: Array) -> list[Event]:
    if size == 0:
        return []

    away = limit.any()

    def log_size(state: Array) -> float:
        return float(np.log(max(norms(state - limit if away else state).max() / size, 1e-320)))

    spread = rms(start - start.mean(axis=0))
    events = [
        Event("converged", lambda time, state: log_size(state) - math.log(CONVERGED)),
        Event("grew", lambda time, state: math.log(growth_cap) - log_size(state)),
    ]
    if spread > CONVERGED * size:
        together = CONVERGED * spread
        events.append(Event("consensus", lambda time, state: rms(state - state.mean(axis=0)) - together, False))
    return events


def _status(
    ended: Ended, happened: list[Happened], times: Array, plateaus: list[tuple[int, int]], growth_cap: float
) -> tuple[Status, list[FlowEvent]]:
    """The status and the events in words, plateaus among them."""
    sentences = {
        "converged": "every token is within a millionth of its limit",
        "grew": f"the largest token has grown {growth_cap:g}-fold",
        "consensus": "all tokens have come together, to a millionth of their first spread",
    }
    found = [FlowEvent(event.name, event.time, sentences[event.name]) for event in happened]
    names = {event.name for event in happened}
    status = Status.HORIZON
    if ended is Ended.EVENT:
        status = Status.CONVERGED if "converged" in names else Status.GREW
    elif ended in (Ended.STIFF, Ended.EXHAUSTED):
        status = Status.STIFF if ended is Ended.STIFF else Status.EXHAUSTED
        found.append(FlowEvent(str(ended), float(times[-1]), ended.meaning))
    for first, last in plateaus:
        at_end = last == len(times) - 1
        until = "to the end" if at_end else f"to t = {times[last]:.3g}"
        words = f"tokens hardly move from t = {times[first]:.3g} {until}: a plateau or an equilibrium"
        found.append(FlowEvent("plateau", float(times[first]), words))
        if at_end and status is Status.HORIZON:
            status = Status.AT_REST
    return status, sorted(found, key=lambda event: event.time)


class _Pace:
    """Finds plateaus: a fifth of the run or more so slow that no token would move by 5% of the size in a run."""

    def __init__(self, times: Array) -> None:
        self._times = times
        self._slow: list[bool] = []  # for each moment but the last: is it slow until the next?
        self._last: Array | None = None
        self._first_size = self._last_size = 0.0

    def look(self, states_TND: Array, sizes_T: Array) -> None:
        """Look at the next states and their sizes."""
        for state, size in zip(states_TND, sizes_T, strict=True):
            if self._last is None:
                self._first_size = size
            else:
                self._slow.append(self._is_slow(self._last, state))
            self._last, self._last_size = state, size
        if self._last is not None:
            self._last = self._last.copy()  # of an array that is used again

    def _is_slow(self, before: Array, after: Array) -> bool:
        if not self._last_size > CONVERGED * self._first_size:
            return False
        first, second = self._times[len(self._slow) : len(self._slow) + 2]
        most = REST_CHANGE * self._last_size * (second - first) / (self._times[-1] - self._times[0])
        if (np.abs(after[0] - before[0]) > most).any():  # mostly so, and then the others are not looked at
            return False
        return bool(norms(after - before).max() <= most)

    def plateaus(self) -> list[tuple[int, int]]:
        """The first and last moment of each."""
        least = REST_SHARE * (self._times[-1] - self._times[0])
        found: list[tuple[int, int]] = []
        first: int | None = None
        for i, is_slow in enumerate([*self._slow, False]):
            if is_slow and first is None:
                first = i
            elif not is_slow and first is not None:
                if self._times[i] - self._times[first] >= least:
                    found.append((first, i))
                first = None
        return found


def _log_ratio(after: Array, before: Array) -> Array:
    tiny = np.finfo(np.float64).tiny
    ratio = np.log(np.maximum(after, tiny)) - np.log(np.maximum(before, tiny))
    return np.where(before > 0, ratio, np.nan)


def _slope(times: Array, sizes: Array) -> float:
    """The slope of log size over the last third of the times."""
    late = times >= times[-1] - (times[-1] - times[0]) / 3
    late &= sizes > 0
    if late.sum() < 2:
        return 0.0
    t = times[late] - times[late].mean()
    return float(t @ np.log(sizes[late]) / (t @ t))


class _Keeper:
    """Keeps states at even times. It starts finely and doubles the distance whenever it holds too many, so that a run
    that stops early is as well covered as one that reaches the horizon. A step is kept as its polynomial, and states
    are formed when they are asked for: most of the fine times never are."""

    def __init__(self, start: Array, end: float, samples: int, times: ArrayLike | None) -> None:
        self._held: list[Array | Polynomial] = [start.copy()]  # for each time its state, or what it is formed from
        self._times: list[float] = [0.0]
        self._shape = start.shape
        self._samples = samples
        self._most = max(8, int(MOST_KEPT / 5 / max(start.size, 1)))  # polynomials: five arrays each
        self._room = _Room((5, *start.shape), samples)
        self._gap = end / (samples - 1) / 64
        self._wanted: Array | None = None
        self._next = 1
        if times is not None:
            wanted = np.asarray(times, dtype=np.float64).ravel()
            if not len(wanted) or (np.diff(wanted) <= 0).any() or wanted[0] < 0 or wanted[-1] > end * (1 + 1e-12):
                raise BadValue(f"output times must increase, from 0 at the earliest to the horizon {end:g}.")
            self._wanted = wanted[wanted > 0]
            self._next = 0

    def take(self, step: Step) -> None:
        if self._wanted is not None:
            upto = int(np.searchsorted(self._wanted, step.end, side="right"))
            due = self._wanted[self._next : upto]
            self._next = max(self._next, upto)
        else:
            due = self._due(step.end)
            while len(due) > self._samples:  # a long step: keep only what will survive
                self._thin()
                due = self._due(step.end)
            self._next += len(due)
        if len(due):
            self._held += [step.polynomial(self._room.take())] * len(due)
            self._times += due.tolist()
        while self._wanted is None and len(self._times) > self._samples:
            self._thin()
        if self._room.taken > self._most:
            self._hold([state.copy() for states_TND in self.states() for state in states_TND])

    def _due(self, end: float) -> Array:
        upto = math.floor(end / self._gap * (1 + 1e-12))
        return np.asarray(np.minimum(np.arange(self._next, upto + 1) * self._gap, end), dtype=np.float64)

    def _thin(self) -> None:
        self._hold(self._held[::2])
        self._times = self._times[::2]
        self._gap *= 2
        self._next = (self._next + 1) // 2

    def _hold(self, held: list[Array | Polynomial]) -> None:
        """Hold these instead, and give back the room of polynomials that are not among them."""
        gone = {id(each): each for each in self._held if isinstance(each, Polynomial)}
        for each in held:
            gone.pop(id(each), None)
        for polynomial in gone.values():
            self._room.give(polynomial.factors)
        self._held = held

    def close(self, time: float, state: Array, *, final: bool) -> None:
        """The end of a piece: a jump there is kept in place of the state before it, and the last state always."""
        if self._times[-1] >= time * (1 - 1e-12) and time > 0:
            self._hold([*self._held[:-1], state.copy()])
            self._times[-1] = time
        elif final and time > 0:
            self._held.append(state.copy())
            self._times.append(time)

    def times(self) -> Array:
        """The times of the states."""
        return np.array(self._times)

    def states(self, begin: int = 0) -> Iterator[Array]:
        """The states kept, from this one on, several at a time, in an array that is used again."""
        shape, count = self._shape, len(self._times)
        states_TND = np.empty((min(count, max(1, AT_ONCE // math.prod(shape))), *shape))
        for first in range(begin, count, len(states_TND)):
            some = range(first, min(first + len(states_TND), count))
            for _, group in groupby(some, key=lambda i: id(self._held[i])):
                several = list(group)
                made, into = self._held[several[0]], states_TND[several[0] - first : several[-1] + 1 - first]
                if isinstance(made, Polynomial):
                    made.at([self._times[i] for i in several], out=into)
                else:
                    into[...] = made
            yield states_TND[: len(some)]


class _Room:
    """Arrays of one shape, handed out and taken back. Memory is asked for in large parts: the system gives many small
    ones, page by page, at a much higher price."""

    def __init__(self, shape: tuple[int, ...], most: int) -> None:
        self._together = (min(most, max(1, ALLOTTED // math.prod(shape))), *shape)
        self._free: list[Array] = []
        self.taken = 0

    def take(self) -> Array:
        if not self._free:
            self._free = list(np.empty(self._together))
        self.taken += 1
        return self._free.pop(0)

    def give(self, array: Array) -> None:
        self._free.insert(0, array)
        self.taken -= 1
