"""Runs a problem: integrates it, keeps states at even times, watches for events, and measures what was kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
            fresh = keeper.states(sum(len(part["norm_max"]) for part in measured))
            if fresh:
                measured.append(look(fresh, field=the_field))
        number += 1
    if the_field is None:  # every token starts at its limit
        the_field = problem.pieces[0].make()
        happened.append(Happened("converged", 0.0))
        ended = Ended.EVENT
    all_times, states = keeper.result()
    if not pieced or not measured:
        measured = [look(states, field=the_field, heavy=_heavy(len(states)))]
    observables = {name: np.concatenate([part[name] for part in measured]) for name in measured[0]}
    sizes = observables["norm_max"] if not limit.any() else np.array([norms(kept - limit).max() for kept in states])
    status, words = _status(ended, happened, all_times, states, sizes, growth_cap)
    ratios = _log_ratio(norms(state - limit), norms(start - limit))
    kept_tokens = thinned(len(start), max(8, int(MOST_SAVED / (len(states) * start.shape[1]))))
    speed = float(norms(the_field(state)).max())
    now = float(norms(state - limit).max())
    return Trajectory(
        title=problem.title,
        status=status,
        times=all_times,
        tokens=_rows(states, kept_tokens),
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


def _rows(states: Sequence[Array], chosen: NDArray[np.intp]) -> Array:
    found = np.empty((len(states), len(chosen), states[0].shape[1]))
    for into, state in zip(found, states, strict=True):
        np.take(state, chosen, axis=0, out=into, mode="clip")  # that mode writes without a copy between
    return found


def _heavy(count: int) -> list[bool]:
    """Of so many moments those at which everything is measured: evenly spaced, first and last among them."""
    chosen = set(thinned(count, MOST_HEAVY).tolist())
    return [number in chosen for number in range(count)]


def _events(limit: Array, size: float, growth_cap: float, start: Array) -> list[Event]:
    if size == 0:
        return []

    def log_size(state: Array) -> float:
        return float(np.log(max(norms(state - limit).max() / size, 1e-320)))

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
    ended: Ended, happened: list[Happened], times: Array, states: list[Array], sizes: Array, growth_cap: float
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
    for first, last in _plateaus(times, states, sizes):
        at_end = last == len(times) - 1
        until = "to the end" if at_end else f"to t = {times[last]:.3g}"
        words = f"tokens hardly move from t = {times[first]:.3g} {until}: a plateau or an equilibrium"
        found.append(FlowEvent("plateau", float(times[first]), words))
        if at_end and status is Status.HORIZON:
            status = Status.AT_REST
    return status, sorted(found, key=lambda event: event.time)


def _plateaus(times: Array, states: list[Array], sizes: Array) -> list[tuple[int, int]]:
    """Stretches of a fifth of the run or more so slow that no token would move by 5 % of the size in a run."""
    span = float(times[-1] - times[0])
    slow = [
        sizes[i] > CONVERGED * sizes[0]
        and _within(states[i], states[i + 1], REST_CHANGE * sizes[i] * (times[i + 1] - times[i]) / span)
        for i in range(len(times) - 1)
    ]
    found: list[tuple[int, int]] = []
    first: int | None = None
    for i, is_slow in enumerate([*slow, False]):
        if is_slow and first is None:
            first = i
        elif not is_slow and first is not None:
            if times[i] - times[first] >= REST_SHARE * span:
                found.append((first, i))
            first = None
    return found


def _within(before: Array, after: Array, most: float) -> bool:
    """Whether no token moved farther; mostly the first one has, and then the others are not looked at."""
    return all(bool(norms(after[some] - before[some]).max() <= most) for some in (slice(1), slice(None)))


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
        self._samples = samples
        self._most = max(8, int(MOST_KEPT / 5 / max(start.size, 1)))  # polynomials: five arrays each
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
            self._held += [step.polynomial()] * len(due)
            self._times += due.tolist()
        while self._wanted is None and len(self._times) > self._samples:
            self._thin()
        if len({id(each) for each in self._held if isinstance(each, Polynomial)}) > self._most:
            self._held = list(self.states())

    def _due(self, end: float) -> Array:
        upto = math.floor(end / self._gap * (1 + 1e-12))
        return np.asarray(np.minimum(np.arange(self._next, upto + 1) * self._gap, end), dtype=np.float64)

    def _thin(self) -> None:
        self._held, self._times = self._held[::2], self._times[::2]
        self._gap *= 2
        self._next = (self._next + 1) // 2

    def close(self, time: float, state: Array, *, final: bool) -> None:
        """The end of a piece: a jump there is kept in place of the state before it, and the last state always."""
        if self._times[-1] >= time * (1 - 1e-12) and time > 0:
            self._held[-1] = state.copy()
            self._times[-1] = time
        elif final and time > 0:
            self._held.append(state.copy())
            self._times.append(time)

    def states(self, begin: int = 0) -> list[Array]:
        """The states kept, from this one on."""
        found: list[Array] = []
        for _, group in groupby(range(begin, len(self._times)), key=lambda i: id(self._held[i])):
            several = list(group)
            made = self._held[several[0]]
            at = [self._times[i] for i in several]
            found += list(made.at(at)) if isinstance(made, Polynomial) else [made] * len(several)
        return found

    def result(self) -> tuple[Array, list[Array]]:
        return np.array(self._times), self.states()
