"""What the diagonal buys on a model that was trained without it: tune D alone, and something else of the same size.

Two arms see the same sequences in the same order, and everything else in the model stays as it is:

* diagonal   D of every layer, from a small start;
* control    a factor for each coordinate of what attention reads, x -> (1 + g) x, from g = 0: as many parameters, on
             the vector that D reads, without the term in the logits.

Losses are of held-out sequences, before and after; differences are paired, with t-intervals over those sequences.
An interrupted run goes on where it was: the state is written whole, to a temporary name, then renamed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toposcope.checkpoints.identity import fingerprint
from toposcope.checkpoints.live import view
from toposcope.core.errors import BadConfig, BadValue
from toposcope.core.statistics import half_width
from toposcope.models.about import identity_of
from toposcope.models.corpus import Corpus
from toposcope.models.instrument import attached
from toposcope.models.load import Reference
from toposcope.models.score import Trial, kind_of, token_losses, trial
from toposcope.refinements.diagonal import FORMS, Form, Installed, bound, install
from toposcope.refinements.saved import State

SELF_LOGIT = 0.1  # what an automatic start adds to a token's logit with itself, on average
SPARE = 1.001  # over the bound
EVERY = 10  # steps from one saved state to the next
ARMS = ("diagonal", "control")


@dataclass(frozen=True)
class Settings:
    """All that decides the numbers, beside the model and the texts. Learning rates fall linearly to 0.

    `diagonal` is "auto" (each layer starts at SELF_LOGIT), "bound" (D stays above the bound of the theory; uniform
    form only) or a number to start at. `lr` is in units of D's start, `control_lr` in units of the factor.
    """

    diagonal: str = "auto"
    form: Form = "slice"
    steps: int = 200
    lr: float = 0.1
    control_lr: float = 0.005
    norms: bool = False
    norm_lr: float = 0.001
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise BadValue(f"--form takes {' or '.join(FORMS)}, got '{self.form}'.")
        if self.steps < 1:
            raise BadValue(f"at least one step is needed, got {self.steps}.")
        if not min(self.lr, self.control_lr, self.norm_lr) > 0:
            raise BadValue("learning rates must be positive.")
        if self.diagonal == "bound" and self.form != "uniform":
            raise BadValue("the bound is about the whole x^T D x: --diagonal bound needs --form uniform.")
        if self.diagonal not in ("auto", "bound"):
            try:
                value = float(self.diagonal)
            except ValueError:
                value = float("nan")
            if not (np.isfinite(value) and value > 0):
                raise BadValue(f"--diagonal takes 'auto', 'bound' or a positive number, got '{self.diagonal}'.")


@dataclass(frozen=True)
class Difference:
    """The mean of one condition's loss less another's over held-out sequences, and its half-width (None for one)."""

    of: str
    against: str
    mean: float
    half_width: float | None

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width


@dataclass(frozen=True)
class Moved:
    """How far D of one layer went from where it began, and how it compares with the bound."""

    layer: int
    start: float
    least: float
    median: float
    largest: float
    bound: float


@dataclass(frozen=True)
class TuneResult:
    """Losses in nats per token; `held_out` has, for each condition, one loss per sequence.

    `key` is the sha256 of all that decided them: model, texts, settings.
    """

    key: str
    settings: Settings
    text: str
    held_text: str
    parameters: Mapping[str, int]
    held_out: Mapping[str, tuple[float, ...]]
    differences: tuple[Difference, ...]
    training: Mapping[str, tuple[float, ...]]
    seconds_per_step: Mapping[str, float]
    moved: tuple[Moved, ...]


def tune(
    reference: Reference,
    train: Corpus,
    held: Corpus,
    settings: Settings,
    *,
    directory: str | Path | None = None,
    tick: Callable[[], None] = lambda: None,
) -> tuple[TuneResult, dict[int, Tensor]]:
    """Run both arms; returns the result and the values of D by layer. `tick` is called `ticks(settings)` times.

    With a directory the state is kept there, and a run that was cut short goes on; `saved.forget` removes it when the
    result has been written.
    """
    model = reference.model
    if kind_of(model) != "next token":
        raise BadConfig(f"{type(model).__name__} does not predict the next token: there is nothing to tune by.")
    weights = view(model)
    if any(layer.encoding.rotary is None for layer in weights.layers):
        raise BadConfig("some layers of the model do not rotate; the diagonal is a refinement of rotary attention.")
    bounds = {layer.number: bound(layer) for layer in weights.layers}
    trials = [trial(reference, ids) for ids in train.sequences]
    tests = [trial(reference, ids) for ids in held.sequences]
    key = key_of(reference, train, held, settings)
    state = State(directory, key)
    order = _order(len(trials), settings)
    with _frozen(model):
        starts, least = _starts(model, trials[0], settings, bounds)
        losses = {"before": state.kept("before", lambda: evaluate(model, tests))}
        tick()
        counts: dict[str, int] = {}
        values: dict[int, Tensor] = {}
        for arm in ARMS:
            with _arm(model, arm, settings, starts, least) as (groups, installed):
                counts[arm] = sum(p.numel() for group in groups for p in group["params"])
                if installed is not None:
                    losses["start"] = state.kept("start", lambda: evaluate(model, tests))
                _train(model, arm, groups, [trials[i] for i in order], settings, state, tick)
                losses[arm] = state.kept(arm, lambda: evaluate(model, tests))
                if installed is not None:
                    values = installed.values()
            tick()
    pairs = [("start", "before"), ("diagonal", "before"), ("control", "before"), ("diagonal", "control")]
    result = TuneResult(
        key=key,
        settings=settings,
        text=train.cut,
        held_text=held.cut,
        parameters=counts,
        held_out={name: tuple(found) for name, found in losses.items()},
        differences=tuple(_difference(losses, of, against) for of, against in pairs),
        training={arm: tuple(state.training(arm)) for arm in ARMS},
        seconds_per_step={arm: state.seconds(arm) / settings.steps for arm in ARMS},
        moved=tuple(_moved(number, value, starts, least, bounds) for number, value in values.items()),
    )
    return result, values


def key_of(reference: Reference, train: Corpus, held: Corpus, settings: Settings) -> str:
    """The sha256 of everything that decides the numbers: the model, both texts as tokens, the settings."""
    return fingerprint([identity_of(reference.model), train.sequences, held.sequences, settings])


def ticks(settings: Settings) -> int:
    """How often `tune` calls `tick`."""
    return 1 + len(ARMS) * (settings.steps + 1)


def evaluate(model: Any, trials: Sequence[Trial]) -> list[float]:
    """The mean loss of each sequence, in nats per token."""
    with torch.no_grad():
        return [float(token_losses(each, model(**each.inputs)).mean()) for each in trials]


# -------------------------------------------------------------------- inside
def _train(
    model: Any,
    arm: str,
    groups: list[dict[str, Any]],
    trials: Sequence[Trial],
    settings: Settings,
    state: State,
    tick: Callable[[], None],
) -> None:
    """One sequence a step, Adam, learning rates that fall linearly to 0."""
    parameters = [p for group in groups for p in group["params"]]
    optimizer = torch.optim.Adam(groups)
    rates = [group["lr"] for group in optimizer.param_groups]
    begin = state.resume(arm, parameters, optimizer)
    for _ in range(begin):
        tick()
    for step in range(begin, settings.steps):
        started = time.perf_counter()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - step / settings.steps)
        loss = token_losses(trials[step], model(**trials[step].inputs)).mean()
        if not torch.isfinite(loss):
            raise BadValue(
                f"the loss of the {arm} became {float(loss.detach())} at step {step}. Use smaller learning rates."
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.note(arm, float(loss.detach()), time.perf_counter() - started)
        if (step + 1) % EVERY == 0 or step + 1 == settings.steps:
            state.save(arm, step + 1, parameters, optimizer)
        tick()


@contextmanager
def _arm(
    model: Any, arm: str, settings: Settings, starts: Mapping[int, float], least: Mapping[int, float]
) -> Iterator[tuple[list[dict[str, Any]], Installed | None]]:
    """The parameters of an arm, in force for as long as the block lasts; norms are put back after it."""
    norms = _norms(model) if settings.norms else []
    before = [p.detach().clone() for p in norms]
    installed, scales = None, None
    try:
        if arm == "diagonal":
            installed = install(model, form=settings.form, start=starts, least=least)
            own = {"params": installed.parameters(), "lr": settings.lr}
        else:
            scales = _Scales(model)
            own = {"params": scales.parameters, "lr": settings.control_lr}
        for p in norms:
            p.requires_grad_(True)
        yield [own, *([{"params": norms, "lr": settings.norm_lr}] if norms else [])], installed
    finally:
        if installed is not None:
            installed.remove()
        if scales is not None:
            scales.remove()
        with torch.no_grad():
            for p, old in zip(norms, before, strict=True):
                p.requires_grad_(False).copy_(old)
                p.grad = None


class _Scales:
    """x -> (1 + g) x on the way into every attention."""

    def __init__(self, model: Any) -> None:
        width = model.get_input_embeddings().weight.shape[1]
        with attached(model) as instrument:
            modules = [site.module for site in instrument.sites]
        like = next(model.parameters())
        self.parameters = [nn.Parameter(torch.zeros(width, dtype=like.dtype)) for _ in modules]
        self._handles = [
            module.register_forward_pre_hook(_scaled(gain), with_kwargs=True)
            for module, gain in zip(modules, self.parameters, strict=True)
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _scaled(gain_D: Tensor) -> Callable[..., Any]:
    def before(module: Any, args: Any, kwargs: Any) -> Any:
        if args:
            return (args[0] * (1 + gain_D), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": kwargs["hidden_states"] * (1 + gain_D)}

    return before


def _norms(model: Any) -> list[nn.Parameter]:
    return [
        p for module in model.modules() if "Norm" in type(module).__name__ for p in module.parameters(recurse=False)
    ]


@contextmanager
def _frozen(model: Any) -> Iterator[None]:
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    try:
        for p, _ in wanted:
            p.requires_grad_(False)
        yield
    finally:
        for p, was in wanted:
            p.requires_grad_(was)


def _starts(
    model: Any, first: Trial, settings: Settings, bounds: Mapping[int, float]
) -> tuple[dict[int, float], dict[int, float]]:
    """Where D begins in each layer, and below what it may not fall."""
    least = {n: SPARE * tau if settings.diagonal == "bound" else 0.0 for n, tau in bounds.items()}
    if settings.diagonal not in ("auto", "bound"):
        return dict.fromkeys(bounds, float(settings.diagonal)), least
    sizes: dict[int, float] = {}
    with attached(model) as instrument:
        handles = [
            site.module.register_forward_pre_hook(_measuring(sizes, site.number), with_kwargs=True)
            for site in instrument.sites
        ]
        slices = {site.number: site.heads if settings.form == "slice" else 1 for site in instrument.sites}
        try:
            evaluate(model, [first])
        finally:
            for handle in handles:
                handle.remove()
    return {n: SELF_LOGIT / max(sizes[n] / slices[n], 1e-30) for n in bounds}, least


def _measuring(sizes: dict[int, float], number: int) -> Callable[..., None]:
    def before(module: Any, args: Any, kwargs: Any) -> None:
        x_BND = args[0] if args else kwargs["hidden_states"]
        sizes[number] = float(x_BND.pow(2).sum(-1).mean())

    return before


def _order(count: int, settings: Settings) -> list[int]:
    """Which sequence each step sees: all of them in random order, then again in another."""
    rng = np.random.default_rng(settings.seed)
    rounds = -(-settings.steps // count)
    return [int(i) for _ in range(rounds) for i in rng.permutation(count)][: settings.steps]


def _difference(losses: Mapping[str, Sequence[float]], of: str, against: str) -> Difference:
    gaps = np.array(losses[of]) - np.array(losses[against])
    return Difference(of, against, float(gaps.mean()), half_width(gaps.tolist()))


def _moved(
    number: int, value: Tensor, starts: Mapping[int, float], least: Mapping[int, float], bounds: Mapping[int, float]
) -> Moved:
    free = value.double() - least[number]
    return Moved(
        layer=number,
        start=starts[number],
        least=float(free.min()) / starts[number],
        median=float(free.median()) / starts[number],
        largest=float(free.max()) / starts[number],
        bound=bounds[number],
    )
