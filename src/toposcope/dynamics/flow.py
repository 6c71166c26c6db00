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
from toposcope.dynamics.matrices import Absolute, matrices, square
from toposcope.dynamics.observables import OBSERVABLES
from toposcope.dynamics.position_effect import PositionEffect, effect
from toposcope.dynamics.presets import find_preset
from toposcope.dynamics.regime import Regime, Verdict
from toposcope.dynamics.run import GROWTH_CAP, Problem, run
from toposcope.dynamics.storage import layer_storage_error
from toposcope.dynamics.systems import Norms
from toposcope.dynamics.tokens import COUNT, Cloud, check_start, given_array, isotropic, starting_tokens
from toposcope.dynamics.trajectory import FlowEvent, PlanePath, Status, Trajectory, in_plane
from toposcope.encodings import NONE, Encoding, parse
from toposcope.encodings.registry import listed

Array = NDArray[np.float64]
Tick = Callable[[float], None]
TICKS = 100  # steps of the progress of one flow
MOST_EVALUATIONS = 20_000  # of the field, in one run
RTOL = 1e-6
RTOL_OF_MODEL = 1e-4  # norms and cosines come out as with 1e-5, in a fraction of the steps (docs/flow.md)
CAP_OF_LAYER = 100.0  # logits are 10,000 times the model's then, and each further step is dearer than the last


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
    run, `speed` the largest |dx/dt| at the end over the largest norm there. `position_effect` sets the flow beside
    that of the same start without position.
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
    position_effect: PositionEffect | None = None

    def __post_init__(self) -> None:
        lengths = {len(series) for series in self.observables.values()}
        if "time" not in self.observables or len(lengths) != 1:
            raise BadFile("the observables of a flow must be series of one length, the times among them.")


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowResult(Result):
    """Tokens in motion, one flow for each encoding that was asked for.

    `suggestions` are options worth trying next, with what they do. `without_position` is the flow that those with an
    encoding are set beside, where it was run for that.
    """

    kind = "flow"
    table = "flows"

    title: str
    sentence: str  # what flows, in words
    suggestions: Mapping[str, str]
    flows: tuple[Flow, ...]
    why: str = ""  # of a preset: how we read what is seen
    without_position: Flow | None = None

    @property
    def runs(self) -> tuple[Flow, ...]:
        """All flows, that without position last."""
        return self.flows if self.without_position is None else (*self.flows, self.without_position)

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
                for flow in self.runs
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
    growth_cap: float | None = None,
    max_evaluations: int = MOST_EVALUATIONS,
    rtol: float | None = None,
    position_effect: bool = True,
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
    (default: by the weights), when tokens have grown `growth_cap`-fold (default: 10,000, and 100 for a layer), or
    after `max_evaluations` of the field;
    `rtol` is the relative tolerance of a step (default: 1e-4 for a model, 1e-6 for two matrices). With
    `position_effect` the same start is run without position too, where there is an encoding, and what differs is
    measured.
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
    if rtol is None:
        rtol = RTOL if model is None else RTOL_OF_MODEL
    if growth_cap is None:
        growth_cap = GROWTH_CAP if layer is None else CAP_OF_LAYER
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
            system = _of_model(view, place, layer, x0, shared, words, positioned=start is not None)

        sole = shared["diagonal"] != "auto" or (len(chosen) == 1 and not stack)  # else each has a diagonal of its own
        compared = position_effect and sole
        specs = [*chosen, "none"] if compared and all(map(system.placed, chosen)) else chosen
        flows: list[Flow] = []
        runs: list[Trajectory] = []
        for number, spec in enumerate(specs):
            until, changes = horizon, {}
            if number == len(chosen):  # without position: for as long as the others ran, with all else as they had it
                until, changes = max(each.end for each in runs) or horizon, {"diagonal": flows[0].settings.diagonal}
            problem = system.make(spec, **changes)
            runs.append(
                run(
                    problem, horizon=until, rtol=rtol, growth_cap=growth_cap, max_evaluations=max_evaluations,
                    tick=_ticks(progress, number, len(specs)),
                )
            )  # fmt: skip
            flows.append(_flow(problem, runs[-1], system.own if spec is None else spec, system.storage_error()))
            if save is not None and number == 0:
                runs[0].save(save)
        if compared:
            flows = _with_effects(flows, runs, [system.placed(spec) for spec in specs])
        subjects = () if view is None else (subject(view, model),)
    return FlowResult(
        title=system.title,
        sentence=system.sentence,
        suggestions=system.suggestions,
        flows=tuple(flows[: len(chosen)]),
        why=system.why if all(each in (None, system.own) for each in chosen) and shared == _AS_IT_IS else "",
        without_position=flows[-1] if len(flows) > len(chosen) else None,
        provenance=Provenance(subjects, asked, time.perf_counter() - started),
    )


@dataclass(frozen=True, eq=False)
class _System:
    """What flows: the problem under each encoding, and words for it."""

    make: Callable[..., Problem]  # of the name of an encoding, None for the system's; and what else is to be changed
    title: str
    sentence: str
    own: str = "own"
    encoding: Encoding | None = None  # its own
    storage_error: Callable[[], float | None] = lambda: None
    suggestions: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    def placed(self, spec: str | None) -> bool:
        """Whether position acts under this encoding."""
        if _is_own(spec):
            return self.encoding is not None and bool(self.encoding.mechanisms)
        return parse(spec or "").name != NONE.name


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
    words: str,
    *,
    positioned: bool,
) -> _System:
    """A part of a model on tokens; those that are `positioned` already are not given the model's vectors again."""
    number = layer if head is None else head[0]
    encodings = [each.encoding for each in model.layers]
    if number is not None:
        encodings = encodings[number : number + 1] if number >= 0 else []
    bare = [replace(each, input=None) for each in encodings] if positioned and number is not None else []
    own = next((each for each in bare or encodings if each.mechanisms), None)

    def make(spec: str | None, **changes: Any) -> Problem:
        used = {**shared, **changes, "encoding": bare[0] if bare and _is_own(spec) else spec}
        if head is not None:
            return sources.head_problem(model, *head, x0, **used)
        if layer is not None:
            return sources.layer_problem(model, layer, x0, **used)
        return sources.stack_problem(model, x0, **used)

    def storage_error() -> float | None:
        return None if number is None else layer_storage_error(model, model.layers[number])

    return _System(make, name_of(model), words, encoding=own, storage_error=storage_error)


def _is_own(spec: str | None) -> bool:
    return spec is None or spec.strip().lower() == "own"


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

    def make(encoding: str | None, **changes: Any) -> Problem:
        used = {**given, **shared, **changes, **({} if _is_own(encoding) else {"encoding": encoding})}
        return matrices(used.pop("W"), used.pop("V"), used.pop("x0"), **used)

    encoding = given.get("encoding")
    return _System(
        make,
        title,
        sentence,
        own="none" if encoding is None else "own",
        encoding=encoding,
        suggestions=suggestions,
        why="" if start is not None else why,
    )


def _with_effects(flows: Sequence[Flow], runs: Sequence[Trajectory], placed: Sequence[bool]) -> list[Flow]:
    """The flows, those with position set beside the first without."""
    if all(placed) or not any(placed):
        return list(flows)
    alone = runs[placed.index(False)]
    return [
        replace(told, position_effect=effect(found, alone)) if acts else told
        for told, found, acts in zip(flows, runs, placed, strict=True)
    ]


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


def _ticks(progress: Progress | None, number: int, count: int) -> Tick:
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
