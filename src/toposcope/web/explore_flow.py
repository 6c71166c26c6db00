"""Token flow on request: two small matrices, a preset, or a head of a model, with the verdict and its certificate.

A moving hand gets a preview: the same equations to a lower accuracy and with fewer steps. A resting one (`settled`)
gets the library's own run, with all that is measured on the way and the word on whether run and theorem agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.core.fields import plain
from toposcope.dynamics.agreement import compare
from toposcope.dynamics.dormand_prince import Step
from toposcope.dynamics.integrate import Ended, Event, integrate
from toposcope.dynamics.matrices import matrices
from toposcope.dynamics.observables import OBSERVABLES, norms
from toposcope.dynamics.presets import PRESETS, find_preset
from toposcope.dynamics.regime import Regime
from toposcope.dynamics.run import CONVERGED, GROWTH_CAP, Problem, run
from toposcope.dynamics.trajectory import Status, Trajectory
from toposcope.encodings import parse
from toposcope.report.verdicts import scope_words, theorem
from toposcope.web.explore_encoding import within
from toposcope.web.query import Query

Array = NDArray[np.float64]

MOST_TOKENS = 256
LONGEST_HORIZON = 1000.0
FRAMES, NUMBERS = 121, 40_000  # frames of a run, and numbers in all of them together
WORK = {False: 1e6, True: 4e8}  # evaluations times their cost (see `_allowed`), for a moving and a resting hand
HASTE = 0.04  # seconds that the steps of a preview may take: the hand is moving
PATIENCE = 8.0  # seconds after which a run is given up, whatever was foreseen
SHORT = "a preview as far as it goes; the whole run follows when the controls rest"
UNIT = 10_000  # coordinates are sent as whole numbers of size / UNIT

HeadProblem = Callable[
    [str, int, int, int, int, dict[str, Any]], Problem
]  # model, layer, head, tokens, seed, options


def explore(query: Query, head_problem: HeadProblem) -> dict[str, Any]:
    """Run what is asked for, and say what a theorem says of it."""
    started = time.perf_counter()
    source = query.text("source", "matrices", ("matrices", "preset", "head"))
    settled = query.flag("settled", False)
    shown: dict[str, Any] = {}
    if source == "head":
        problem = _from_head(query, head_problem)
    elif source == "preset":
        problem, shown = _from_preset(query)
    else:
        problem, shown = _from_matrices(query)
    horizon = (
        query.number("horizon", problem.horizon, 1e-3, LONGEST_HORIZON) if query.has("horizon") else problem.horizon
    )
    query.close()
    found = _settled(problem, horizon, started) if settled else _preview(problem, horizon, started)
    verdict = problem.decide() if settled or problem.start.shape[1] <= 3 else None
    result: Trajectory | None = found.pop("result", None)
    if result is not None:
        word = compare(verdict, result)
        found |= {"agreement": word.word, "observed": word.sentence}
    return {
        "source": source,
        "title": problem.title,
        "settled": settled,
        "horizon": horizon,
        "settings": plain(dict(problem.settings)),
        "notes": list(problem.notes),
        **shown,
        **found,
        "verdict": None if verdict is None else verdict_words(verdict),
        "milliseconds": 1e3 * (time.perf_counter() - started),
    }


# ---------------------------------------------------------------- what flows
def matrix(eigenvalues: Array, axes: float, turn: float) -> Array:
    """T(turn) A(axes) diag(eigenvalues) A(axes)^T, with rotations by degrees, in 2 or 3 dimensions.

    Without a turn the matrix is symmetric with these eigenvalues and axes turned by `axes`; equal eigenvalues and a
    turn give a multiple of a rotation. In three dimensions rotations are about (1, 1, 1).
    """
    frame = _rotation(axes, len(eigenvalues))
    return np.asarray(_rotation(turn, len(eigenvalues)) @ (frame * eigenvalues) @ frame.T)


def _rotation(degrees: float, width: int) -> Array:
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    if width == 2:
        return np.array([[cos, -sin], [sin, cos]])
    axis = np.ones(3) / np.sqrt(3)
    cross = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    return np.asarray(cos * np.eye(3) + sin * cross + (1 - cos) * np.outer(axis, axis))


def _from_matrices(query: Query) -> tuple[Problem, dict[str, Any]]:
    width = query.whole("dim", 2, 2, 3)
    W, V = (_asked_matrix(query, name, width, default) for name, default in (("w", 1.0), ("v", -1.0)))
    count, seed = _tokens(query, 24)
    size = query.number("size", 1.0, 1e-3, 1e3)
    options = _options(query, width, causal=True)
    start = size * np.random.default_rng(seed).standard_normal((count, width))
    return matrices(W, V, start, title="two matrices", **options), {"W": W.tolist(), "V": V.tolist()}


def _asked_matrix(query: Query, name: str, width: int, default: float) -> Array:
    values = [query.number(f"{name}{i}", default, -10, 10) for i in range(1, 4)]  # a third may be given and unused
    return matrix(
        np.array(values[:width]),
        query.number(f"{name}_axes", 0, -360, 360),
        query.number(f"{name}_turn", 0, -360, 360),
    )


def _from_preset(query: Query) -> tuple[Problem, dict[str, Any]]:
    preset = find_preset(query.text("preset", "collapse"))
    count = None if preset.fixed_count or not query.has("n") else _count(query, preset.count)
    given = preset.arguments(count, query.whole("seed", 0, 0, 2**31 - 1))
    query.has("n")
    changes = {}
    if query.has("encoding"):
        changes["encoding"] = _encoding(query, len(given["W"]))
        changes["absolute"] = query.text("absolute", "input", ("input", "reinject", "logits"))
    if query.has("causal"):
        changes["causal"] = query.flag("causal", None)
    if query.has("diagonal"):
        changes["diagonal"] = _diagonal(query)
    shown = {
        "W": np.asarray(given["W"]).tolist(),
        "V": np.asarray(given["V"]).tolist(),
        "sentence": preset.sentence,
    }
    given = {**given, **changes, "title": preset.name}
    return matrices(given.pop("W"), given.pop("V"), given.pop("x0"), **given), shown


def _from_head(query: Query, head_problem: HeadProblem) -> Problem:
    model = query.text("model")
    layer, head = query.whole("layer", 0, 0, 100_000), query.whole("head", 0, 0, 100_000)
    count, seed = _tokens(query, 16)
    options: dict[str, Any] = {"norms": query.text("norms", "start", ("start", "on", "off"))}
    if query.has("encoding"):
        text = query.text("encoding")
        if text != "own":
            within(parse(text))
            options["encoding"] = text
    options["absolute"] = query.text("absolute", "input", ("input", "reinject", "logits"))
    if query.has("causal"):
        options["causal"] = query.flag("causal", None)
    options["diagonal"] = _diagonal(query)
    return head_problem(model, layer, head, count, seed, options)


def _tokens(query: Query, count: int) -> tuple[int, int]:
    return _count(query, count), query.whole("seed", 0, 0, 2**31 - 1)


def _count(query: Query, default: int) -> int:
    return query.whole("n", default, 1, MOST_TOKENS)


def _options(query: Query, width: int, *, causal: bool) -> dict[str, Any]:
    return {
        "encoding": _encoding(query, width),
        "absolute": query.text("absolute", "input", ("input", "reinject", "logits")),
        "causal": query.flag("causal", causal),
        "diagonal": _diagonal(query),
    }


def _encoding(query: Query, width: int) -> Any:
    spec = within(parse(query.text("encoding", "none")))
    if width % 2 and spec.name in ("rope", "xpos") and not {"rotary_dim", "partial"} & spec.parameters.keys():
        return parse(f"{spec}{',' if spec.given else ':'}rotary_dim={width - 1}")  # an odd coordinate does not turn
    return spec


def _diagonal(query: Query) -> Any:
    if query.has("diagonal") and query.text("diagonal").lower() == "auto":
        return "auto"
    return query.number("diagonal", 0.0, -1000, 1000)


# ---------------------------------------------------------------- how far it is followed
def _allowed(problem: Problem, settled: bool) -> int:
    """Evaluations that fit the time: one costs as much as some 1500 numbers, and n (n + d) more for the tokens."""
    count, width = problem.start.shape
    whole = int(problem.settings.get("width", width))
    cost = 1500 + count * (count + width) + (90 * (width + count) if whole > 3 else 0)
    return int(np.clip(WORK[settled] / (3 * cost), 30, 6000))


def _deadline(started: float) -> Callable[[float], None]:
    def tick(share: float) -> None:
        if time.perf_counter() - started > PATIENCE:
            raise BadValue(
                f"this takes more than {PATIENCE:g} s ({share:.0%} is done). Use fewer tokens or a nearer horizon."
            )

    return tick


def _frames(count: int, width: int) -> int:
    return int(np.clip(NUMBERS / (count * min(width, 3)), 24, FRAMES))


def _settled(problem: Problem, horizon: float, started: float) -> dict[str, Any]:
    result = run(
        problem,
        horizon=horizon,
        samples=_frames(*problem.start.shape),
        max_evaluations=_allowed(problem, True),
        tick=_deadline(started),
    )
    series = {"time": result.times.tolist(), **{name: plain(values) for name, values in result.observables.items()}}
    words = {each.name: [each.words, each.logarithmic] for each in OBSERVABLES if each.name in result.observables}
    return {
        **_moving(result.times, result.tokens),
        "status": str(result.status),
        "meaning": result.status.meaning,
        "end": result.end,
        "evaluations": result.evaluations,
        "growth_rate": result.growth_rate,
        "log_growth": result.log_growth,
        "events": [plain(event) for event in result.events],
        "observables": series,
        "observable_words": words,
        "result": result,
    }


class _TimeIsUp(Exception):
    """The preview has taken its time."""


def _preview(problem: Problem, horizon: float, started: float) -> dict[str, Any]:
    """The flow as a moving hand needs it: steps of accuracy 1e-3, drawn where the steps are."""
    start = problem.start
    limit = np.zeros_like(start) if problem.limit is None else problem.limit
    size = float(norms(start - limit).max())
    times, states, end = [0.0], [start], 0.0
    status, evaluations = Status.CONVERGED, 0
    if size > 0:
        tick, begun, field = _deadline(started), time.perf_counter(), problem.pieces[0].make()

        def hasty(state: Array) -> Array:
            nonlocal evaluations
            if len(times) > 1 and time.perf_counter() - begun > HASTE:
                raise _TimeIsUp
            evaluations += 1
            return np.asarray(field(state))

        def log_size(state: Array) -> float:
            return float(np.log(max(norms(state - limit).max() / size, 1e-320)))

        def keep(step: Step) -> None:
            tick(step.end / horizon)
            at = np.linspace(step.begin, step.end, 4)[1:]
            times.extend(at.tolist())
            states.extend(step.at(at))

        try:
            solved = integrate(
                hasty,
                start,
                horizon,
                rtol=1e-3,
                atol=1e-6 * size,
                events=(
                    Event("converged", lambda t, state: log_size(state) - np.log(CONVERGED)),
                    Event("grew", lambda t, state: np.log(GROWTH_CAP) - log_size(state)),
                ),
                on_step=keep,
                max_evaluations=_allowed(problem, False),
            )
        except _TimeIsUp:
            status, end = Status.EXHAUSTED, times[-1]
        else:
            end = solved.time
            names = {event.name for event in solved.events}
            status = Status.CONVERGED if "converged" in names else Status.GREW
            if solved.ended is not Ended.EVENT:
                status = Status.HORIZON if solved.ended is Ended.END else Status.EXHAUSTED
    kept = np.unique(np.linspace(0, len(times) - 1, min(len(times), _frames(*start.shape))).round().astype(int))
    return {
        **_moving(np.array(times)[kept], np.array([states[i] for i in kept])),
        "status": str(status),
        "meaning": SHORT if status is Status.EXHAUSTED else status.meaning,
        "end": end,
        "evaluations": evaluations,
    }


# ---------------------------------------------------------------- what is sent
def _moving(times_T: Array, tokens_TND: Array) -> dict[str, Any]:
    """Tokens in at most three coordinates: their own, or the directions in which they are widest.

    Each frame is sent in units of its largest token / UNIT, as whole numbers.
    """
    sizes_T = np.array([float(norms(frame).max()) for frame in tokens_TND])
    unit_TND = tokens_TND / np.where(sizes_T > 0, sizes_T, 1.0)[:, None, None]
    width, share = tokens_TND.shape[2], 1.0
    if width > 3:
        flat = unit_TND.reshape(-1, width)
        values, vectors = np.linalg.eigh(flat.T @ flat)
        share = float(values[-3:].sum() / values.sum()) if values.sum() > 0 else 1.0
        unit_TND = unit_TND @ vectors[:, ::-1][:, :3]
    whole = np.rint(unit_TND * UNIT).astype(np.int64)
    return {
        "times": times_T.tolist(),
        "sizes": sizes_T.tolist(),
        "unit": UNIT,
        "dims": whole.shape[2],
        "frames": whole.reshape(len(whole), -1).tolist(),
        "tokens": whole.shape[1],
        "axes": "coordinates" if width <= 3 else "widest directions",
        "axes_share": share,
    }


def verdict_words(found: Regime) -> dict[str, Any]:
    """A verdict as the page shows it: word, rule, scope, margin, the numbers it rests on, and the certificate."""
    certificate = found.certificate
    return {
        **found.record(False),
        "meaning": found.verdict.meaning,
        "theorem": theorem(found.rule, found.verdict, found.scope),
        "speaks_of": None if found.scope is None else scope_words(found.scope),
        "statement": found.statement,
        "w_min": found.w_min,
        "w_max": found.w_max,
        "a_min": found.a_min,
        "a_max": found.a_max,
        "eigenvalues": [[value.real, value.imag] for value in found.eigenvalues.tolist()],
        "distance": None if found.distance is None else plain(found.distance),
        "certificate": None if certificate is None else _certificate(certificate.as_dict(), len(certificate.S)),
        "warnings": list(found.warnings),
    }


def _certificate(given: dict[str, Any], width: int) -> dict[str, Any]:
    if width <= 3:
        return given
    spread = np.linalg.eigvalsh(np.asarray(given["S"]))
    return {**given, "S": None, "N": None, "S_from": float(spread[0]), "S_to": float(spread[-1])}


@lru_cache(maxsize=1)
def presets() -> list[dict[str, Any]]:
    """The presets, for the list on the page."""
    found = []
    for preset in PRESETS.values():
        given = preset.arguments()
        found.append(
            {
                "name": preset.name,
                "sentence": preset.sentence,
                "tokens": preset.count,
                "fixed": preset.fixed_count,
                "causal": bool(given["causal"]),
                "dim": len(given["W"]),
                "changes": dict(preset.changes),
            }
        )
    return found
