"""Let tokens flow in continuous time and see where they are driven, beside what a theorem says of the same system.

    dx_i/dt = V sum_j softmax_j(x_i^T W x_j + position) x_j

The system is a head, a layer or the stack of a model, two matrices, or a preset; several encodings give a flow each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.checkpoints.opened import ModelLike, name_of, opened, subject
from toposcope.checkpoints.view import Model
from toposcope.core.drawing import drawing
from toposcope.core.errors import BadFile, BadValue
from toposcope.core.fields import plain
from toposcope.core.progress import Progress, silent
from toposcope.core.ranges import parse_heads, written_heads
from toposcope.core.result import Provenance, Result
from toposcope.dynamics import agreement, sources
from toposcope.dynamics.diagonal import parse_diagonal
from toposcope.dynamics.growing import Leading, leading
from toposcope.dynamics.integrate import MAX_EVALUATIONS
from toposcope.dynamics.matrices import Absolute, matrices, square
from toposcope.dynamics.observables import OBSERVABLES
from toposcope.dynamics.presets import find_preset
from toposcope.dynamics.regime import Regime, Verdict
from toposcope.dynamics.run import GROWTH_CAP, Problem, run
from toposcope.dynamics.storage import layer_storage_error
from toposcope.dynamics.systems import Norms
from toposcope.dynamics.tokens import COUNT, Cloud, check_start, given_array, isotropic, starting_tokens
from toposcope.dynamics.trajectory import FlowEvent, PlanePath, Status, Trajectory, in_plane
from toposcope.encodings import Encoding
from toposcope.encodings.registry import listed

Array = NDArray[np.float64]
TICKS = 100  # steps of the progress of one flow


@dataclass(frozen=True)
class Theorem:
    """What a theorem says of the system that flowed.

    `robust`, of a model: whether the verdict survives the rounding of its stored weights, which is `storage_error`,
    relative to their size (an estimate where they are quantised).
    """

    verdict: Verdict
    rule: str | None
    scope: str | None
    exact: bool
    margin: float | None
    statement: str
    alpha: float | None  # largest and smallest real part of V's spectrum
    omega: float | None
    warnings: tuple[str, ...]
    n_pos: int | None = None  # eigenvalues of V by the sign of their real part
    n_neg: int | None = None
    n_zero: int | None = None
    robust: bool | None = None
    storage_error: float | None = None


@dataclass(frozen=True, kw_only=True)
class FlowSettings:
    """What a flow ran with; None where it does not apply. `beta` sets the sizes in Thm 8."""

    encoding: str
    tokens: int
    causal: bool | None = None
    absolute: str | None = None
    diagonal: float | str | None = None
    norms: str | None = None
    width: int | None = None
    layer: int | None = None
    head: int | None = None
    layers: int | None = None
    beta: float
    horizon: float
    rtol: float
    atol: float
    growth_cap: float
    max_evaluations: int


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One flow: how it ended, what was measured along it, and what a theorem says of it.

    `observables` holds "time" and one series for each quantity; those that look at all pairs of tokens (mean
    distance, effective rank, clusters) are measured at up to 25 of the moments, and are NaN at the others.
    `log_growth` is log(largest norm at the end / at the start), `growth_rate` its slope over the last third of the
    run, `speed` the largest |dx/dt| at the end over the largest norm there.
    """

    encoding: str  # as asked for; "own" is the system's
    title: str
    status: Status
    meaning: str
    end: float
    tokens: int
    evaluations: int
    accepted_steps: int
    rejected_steps: int
    log_growth: float
    growth_rate: float
    token_log_growth: tuple[float, ...]
    speed: float
    events: tuple[FlowEvent, ...]
    observables: Mapping[str, tuple[float, ...]]
    settings: FlowSettings
    notes: tuple[str, ...]
    verdict: Theorem | None
    agreement: agreement.Word
    observed: str  # the same in words
    trajectory: PlanePath
    leading: Leading | None = None

    def __post_init__(self) -> None:
        lengths = {len(series) for series in self.observables.values()}
        if "time" not in self.observables or len(lengths) != 1:
            raise BadFile("the observables of a flow must be series of one length, the times among them.")


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowResult(Result):
    """Tokens in motion, one flow for each encoding that was asked for.

    `suggestions` are options worth trying next, with what they do.
    """

    kind = "flow"
    table = "flows"

    title: str
    sentence: str  # what flows, in words
    suggestions: Mapping[str, str]
    flows: tuple[Flow, ...]
    why: str = ""  # of a preset: how we read what is seen

    def tables(self) -> dict[str, tuple[str, ...]]:
        """`flows`: as they ended, without their series; `observables`: a row for each moment."""
        found = super().tables()
        ended = tuple(name for name in found["flows"] if not name.startswith(_SERIES))
        moments = ("encoding", "time", *(each.name for each in OBSERVABLES))
        return {**found, "flows": ended, "observables": moments}

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """A table as flat rows."""
        if table == "observables":
            columns = self.tables()["observables"]
            series = [
                {**flow.observables, "encoding": [flow.encoding] * len(flow.observables["time"])}
                for flow in self.flows
            ]
            return [
                {name: plain(each[name][i]) if name in each else None for name in columns}
                for each in series
                for i in range(len(each["time"]))
            ]
        found = super().rows(table)
        return [{name: value for name, value in row.items() if not name.startswith(_SERIES)} for row in found]

    def movie(self, path: str | Path) -> Path:
        """An animated .gif of the tokens, of a result with a single flow (needs the [plot] extra)."""
        return drawing().movie(self, path)


def flow(
    model: ModelLike | None = None,
    *,
    head: str | tuple[int, int] | None = None,
    layer: int | None = None,
    stack: bool = False,
    W: ArrayLike | str | Path | None = None,
    V: ArrayLike | str | Path | None = None,
    preset: str | None = None,
    text: str | Path | None = None,
    token_ids: str | Sequence[int] | None = None,
    cloud: Cloud = "vocabulary",
    start: ArrayLike | str | Path | None = None,
    tokens: int | None = None,
    seed: int = 0,
    encoding: str | Sequence[str] = (),
    absolute: Absolute = "input",
    diagonal: float | str = 0.0,
    causal: bool | None = None,
    norms: Norms | None = None,
    horizon: float | None = None,
    growth_cap: float = GROWTH_CAP,
    max_evaluations: int = MAX_EVALUATIONS,
    rtol: float = 1e-6,
    save: str | Path | None = None,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
    progress: Progress | None = None,
) -> FlowResult:
    """Let tokens flow and record what becomes of them, beside what a theorem says.

    What flows: a `head` ("5.3"), a `layer` or the `stack` of a `model` (a name, a path, a loaded model); or `W` and
    `V`, arrays or .npy files; or a `preset` (collapse, explode, helix, clusters, c1, c1-mirror, metastable).
    Where it starts: `text` or `token_ids` of the model; random `tokens` of its vocabulary, or of another `cloud`; or
    the rows of `start`, in which position is already.

    Each `encoding` gives a flow of its own (default: the system's own); `absolute` says where absolute vectors act,
    `diagonal` adds tau x_i.x_j to the logits ("auto": enough for them to be positive), `causal` masks the future
    (default: as the model), `norms` are the model's norms: "on", at the "start", "off". A run ends at the `horizon`
    (default: by the weights), when tokens have grown `growth_cap`-fold, or after `max_evaluations` of the field.
    `adapter` is one of PEFT, merged into the model's weights as they are read.
    `save` writes the whole trajectory of a single flow as .npz; `toposcope.dynamics.Trajectory.load` reads it.
    """
    started = time.perf_counter()
    asked = _asked(locals())
    chosen: list[str | None] = [*listed(encoding)] or [None]
    _check_source(model, W, V, preset)
    place: tuple[int, int] | None = None
    if model is None:
        if stack or any(each is not None for each in (text, token_ids, head, layer)):
            raise BadValue("--text, --token-ids, --head, --layer and --stack belong to a MODEL, and none is given.")
    else:  # before it is opened, which may take a while
        place = _one_place(head, layer, stack)
        check_start(text, token_ids, start, cloud, tokens)
    if save is not None and len(chosen) > 1:
        raise BadValue("save holds one flow, and several encodings are asked for. Run them singly.")
    shared: dict[str, Any] = {"absolute": absolute, "diagonal": parse_diagonal(diagonal)}
    shared |= {} if causal is None else {"causal": causal}
    with (
        nullcontext() if model is None else opened(model, family=family, num_heads=num_heads, adapter=adapter) as view
    ):
        if view is None:
            system = _of_matrices(W, V, preset, start, tokens, seed, shared)
        else:
            shared |= {} if norms is None else {"norms": norms}
            x0, words = starting_tokens(view, text, token_ids, start, cloud, tokens, seed)
            make = _of_model(view, place, layer, x0, shared, positioned=start is not None)
            system = _System(make, name_of(view), words)
        flows = []
        for number, spec in enumerate(chosen):
            problem = system.make(spec)
            found = run(
                problem, horizon=horizon, rtol=rtol, growth_cap=growth_cap, max_evaluations=max_evaluations,
                tick=_ticks(progress, number, len(chosen)),
            )  # fmt: skip
            error = None if view is None else _storage_error(view, place, layer)
            flows.append(_flow(problem, found, system.own if spec is None else spec, error))
            if save is not None:
                found.save(save)
        subjects = () if view is None else (subject(view, model),)
    return FlowResult(
        title=system.title,
        sentence=system.sentence,
        suggestions=system.suggestions,
        flows=tuple(flows),
        why=system.why if all(each in (None, system.own) for each in chosen) and shared == _AS_IT_IS else "",
        provenance=Provenance(subjects, asked, time.perf_counter() - started),
    )


@dataclass(frozen=True, eq=False)
class _System:
    """What flows: the problem under each encoding, and words for it."""

    make: Callable[[str | None], Problem]
    title: str
    sentence: str
    own: str = "own"
    suggestions: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


def _storage_error(model: Model, place: tuple[int, int] | None, layer: int | None) -> float | None:
    """How far the stored weights of the place may be from those before rounding; None for the stack."""
    number = place[0] if place is not None else layer
    return None if number is None else layer_storage_error(model, model.layers[number])


def _asked(options: dict[str, Any]) -> dict[str, Any]:
    """The options as provenance tells them: the model is a subject, an array is its shape."""
    told = {name: value for name, value in options.items() if name not in ("model", "progress", "started")}
    if options["model"] is None or any(options[name] is not None for name in ("text", "token_ids", "start")):
        told["cloud"] = None  # no tokens were drawn from it
    return {
        name: f"array {np.shape(value)}" if name in ("W", "V", "start") and _is_array(value) else plain(value)
        for name, value in told.items()
    }


def _is_array(value: Any) -> bool:
    return value is not None and not isinstance(value, str | Path)


def _check_source(model: ModelLike | None, W: Any, V: Any, preset: str | None) -> None:
    if (W is None) != (V is None):
        raise BadValue("--W and --V belong together; one of them is missing.")
    given = [
        name for name, value in (("MODEL", model), ("--W and --V", W), ("--preset", preset)) if value is not None
    ]
    if len(given) > 1:
        raise BadValue(f"{' and '.join(given)} are given; a flow has one source. Leave one out.")
    if not given:
        raise BadValue("nothing to flow: give a MODEL with --head, --layer or --stack, or --W and --V, or --preset.")


def _one_place(head: str | tuple[int, int] | None, layer: int | None, stack: bool) -> tuple[int, int] | None:
    """The head that is asked for, if it is a head; an error unless just one of the three is given."""
    given = {"--head": head is not None, "--layer": layer is not None, "--stack": stack}
    asked = [name for name, on in given.items() if on]
    if len(asked) != 1:
        raise BadValue(
            f"give one of --head (such as 5.3), --layer or --stack; got {' and '.join(asked) or 'none of them'}. "
            "--stack lets tokens flow through all layers."
        )
    if head is None:
        return None
    single = parse_heads(written_heads(head) or "")
    if len(single) != 1:
        raise BadValue(f"--head takes one head, such as 5.3; got {len(single)}.")
    return single[0]


def _of_model(
    model: Model,
    head: tuple[int, int] | None,
    layer: int | None,
    x0: Array,
    shared: dict[str, Any],
    *,
    positioned: bool,
) -> Callable[[str | None], Problem]:
    """The problem for an encoding; tokens that are `positioned` already are not given the model's vectors again."""

    def own(number: int, encoding: str | None) -> Encoding | str | None:
        if encoding is not None or not positioned or not 0 <= number < len(model.layers):
            return encoding
        return replace(model.layers[number].encoding, input=None)

    if head is not None:
        at, number = head
        return lambda encoding: sources.head_problem(model, at, number, x0, encoding=own(at, encoding), **shared)
    if layer is not None:
        return lambda encoding: sources.layer_problem(model, layer, x0, encoding=own(layer, encoding), **shared)
    return lambda encoding: sources.stack_problem(model, x0, encoding=encoding, **shared)


def _of_matrices(
    W: Any, V: Any, preset: str | None, start: Any, tokens: int | None, seed: int, shared: dict[str, Any]
) -> _System:
    given: dict[str, Any]
    if preset is not None:
        chosen = find_preset(preset)
        given = {**chosen.arguments(tokens, seed), "title": chosen.name}
        title, sentence, suggestions, why = chosen.name, chosen.sentence, chosen.changes, chosen.why
    else:
        w, v = square(given_array(W, "W"), "W"), square(given_array(V, "V"), "V")
        given = {"W": w, "V": v, "x0": isotropic(COUNT if tokens is None else tokens, len(v), seed)}
        title, suggestions, why = "W and V", {}, ""
        sentence = "As given." if _is_array(W) else f"W from {W}, V from {V}"
    if start is not None:
        given["x0"] = given_array(start, "tokens in rows")

    def make(encoding: str | None) -> Problem:
        own = encoding is None or encoding.strip().lower() == "own"
        used = {**given, **shared, **({} if own else {"encoding": encoding})}
        return matrices(used.pop("W"), used.pop("V"), used.pop("x0"), **used)

    own_name = "own" if "encoding" in given else "none"
    return _System(make, title, sentence, own_name, suggestions, "" if start is not None else why)


def _flow(problem: Problem, found: Trajectory, encoding: str, storage_error: float | None) -> Flow:
    verdict = problem.decide()
    said = agreement.compare(verdict, found)
    series = {"time": found.times, **found.observables}
    return Flow(
        encoding=encoding,
        title=found.title,
        status=found.status,
        meaning=found.status.meaning,
        end=found.end,
        tokens=found.count,
        evaluations=found.evaluations,
        accepted_steps=found.accepted,
        rejected_steps=found.rejected,
        log_growth=found.log_growth,
        growth_rate=found.growth_rate,
        token_log_growth=tuple(map(float, found.token_log_growth)),
        speed=found.speed,
        events=found.events,
        observables={name: tuple(map(float, values)) for name, values in series.items()},
        settings=FlowSettings(**found.settings),
        notes=found.notes,
        verdict=None if verdict is None else _theorem(verdict, storage_error),
        agreement=said.word,
        observed=said.sentence,
        trajectory=in_plane(found),
        leading=None if verdict is None or verdict.scope != "first_token" else leading(problem, found),
    )


def _theorem(found: Regime, storage_error: float | None) -> Theorem:
    told = {each.name: getattr(found, each.name) for each in fields(Theorem) if hasattr(found, each.name)}
    if storage_error is None:
        return Theorem(**told)
    robust = found.rule in ("T5", "T6") and found.margin is not None and found.margin > storage_error
    return Theorem(**told, robust=robust, storage_error=storage_error)


def _ticks(progress: Progress | None, number: int, count: int) -> Callable[[float], None]:
    """The share of one flow's horizon as steps of the whole work."""
    tell, last = progress or silent, -1

    def tick(share: float) -> None:
        nonlocal last
        now = min(TICKS, int(TICKS * share))
        if now > last:
            last = now
            tell("flow", number * TICKS + now, count * TICKS)

    tick(0.0)
    return tick


_SERIES = ("observables", "trajectory")
_AS_IT_IS: Mapping[str, Any] = {"absolute": "input", "diagonal": 0.0}  # a preset of which nothing is changed
