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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from toposcope.checkpoints.identity import fingerprint
from toposcope.checkpoints.live import view
from toposcope.core import saved
from toposcope.core.errors import BadConfig, BadFile, BadValue
from toposcope.core.progress import Progress
from toposcope.core.progress import steps as steps_of
from toposcope.core.statistics import half_width
from toposcope.core.untrusted import require_plain
from toposcope.models.about import identity_of
from toposcope.models.corpus import Corpus
from toposcope.models.instrument import attached
from toposcope.models.load import Reference
from toposcope.models.rounding import is_rounded
from toposcope.models.score import Trial, batches, kind_of, together, token_losses, trial
from toposcope.refinements.diagonal import Installed, bound, install
from toposcope.studies.refine import (
    WRITTEN,
    ArmLosses,
    ArmParameters,
    ArmSeconds,
    Condition,
    ConditionLosses,
    ConditionMeans,
    Difference,
    Moved,
    RefineResult,
    TuneSettings,
)

SELF_LOGIT = 0.1  # what an automatic start adds to a token's logit with itself, on average
SPARE = 1.001  # over the bound
EVERY = 10  # steps from one saved state to the next
ARMS = ("diagonal", "control")


def tune(
    reference: Reference,
    train: Corpus,
    held: Corpus,
    settings: TuneSettings,
    *,
    directory: str | Path | None = None,
    batch: int = 1,
    progress: Progress | None = None,
) -> tuple[RefineResult, dict[int, Tensor]]:
    """Run both arms; returns the result and the values of D by layer.

    With a directory the state is kept there, and a run that was cut short goes on; `core.saved.clear` removes it when
    the result has been written.
    """
    model = reference.model
    if kind_of(model) != "next token":
        raise BadConfig(f"{type(model).__name__} does not predict the next token: there is nothing to tune by.")
    if settings.norms and is_rounded(model):
        raise BadConfig("norms in half precision are too coarse to tune. Use --dtype float32, or leave --norms out.")
    weights = view(model)
    if any(layer.encoding.rotary is None for layer in weights.layers):
        raise BadConfig("some layers of the model do not rotate; the diagonal is a refinement of rotary attention.")
    bounds = {layer.number: bound(layer) for layer in weights.layers}
    trials = [trial(reference, ids) for ids in train.sequences]
    tests = [trial(reference, ids) for ids in held.sequences]
    key = key_of(reference, train, held, settings)
    state = State(directory, key)
    tick = steps_of(progress, "steps", 1 + len(ARMS) * (settings.steps + 1))
    order = _order(len(trials), settings)
    with _frozen(model):
        starts, least = _starts(model, trials[0], settings, bounds)
        losses = {"before": state.kept("before", lambda: evaluate(model, tests, batch))}
        tick()
        counts: dict[str, int] = {}
        values: dict[int, Tensor] = {}
        for arm in ARMS:
            with _arm(model, arm, settings, starts, least) as (groups, installed):
                counts[arm] = sum(p.numel() for group in groups for p in group["params"])
                if installed is not None:
                    losses["start"] = state.kept("start", lambda: evaluate(model, tests, batch))
                _train(model, arm, groups, [trials[i] for i in order], settings, state, tick)
                losses[arm] = state.kept(arm, lambda: evaluate(model, tests, batch))
                if installed is not None:
                    values = installed.values()
            tick()
    pairs: list[tuple[Condition, Condition]] = [
        ("start", "before"),
        ("diagonal", "before"),
        ("control", "before"),
        ("diagonal", "control"),
    ]
    result = RefineResult(
        key=key,
        settings=settings,
        text=train.cut,
        held_text=held.cut,
        parameters=ArmParameters(**counts),
        held_out=ConditionLosses(**{name: tuple(found) for name, found in losses.items()}),
        held_out_mean=ConditionMeans(**{name: sum(found) / len(found) for name, found in losses.items()}),
        differences=tuple(_difference(losses, of, against) for of, against in pairs),
        training=ArmLosses(**{arm: tuple(state.training(arm)) for arm in ARMS}),
        seconds_per_step=ArmSeconds(**{arm: state.seconds(arm) / settings.steps for arm in ARMS}),
        moved=tuple(_moved(number, value, starts, least, bounds) for number, value in values.items()),
    )
    return result, values


def key_of(reference: Reference, train: Corpus, held: Corpus, settings: TuneSettings) -> str:
    """The sha256 of everything that decides the numbers: the model, both texts as tokens, the settings."""
    return fingerprint([identity_of(reference.model), train.sequences, held.sequences, settings])


def evaluate(model: Any, trials: Sequence[Trial], batch: int = 1) -> list[float]:
    """The mean loss of each sequence, in nats per token; up to `batch` of one length are run together."""
    found: list[float] = []
    with torch.no_grad():
        for numbers in batches(trials, batch):
            some = [trials[number] for number in numbers]
            output = model(**together(some))
            found += [float(token_losses(each, output, row).mean()) for row, each in enumerate(some)]
    return found


# -------------------------------------------------------------------- inside
def _train(
    model: Any,
    arm: str,
    groups: list[dict[str, Any]],
    trials: Sequence[Trial],
    settings: TuneSettings,
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
    model: Any, arm: str, settings: TuneSettings, starts: Mapping[int, float], least: Mapping[int, float]
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
        likes = [next(module.parameters()) for module in modules]
        self.parameters = [nn.Parameter(torch.zeros(width, device=like.device)) for like in likes]
        self._handles = [
            module.register_forward_pre_hook(_scaled(gain), with_kwargs=True)
            for module, gain in zip(modules, self.parameters, strict=True)
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _scaled(gain_D: Tensor) -> Callable[..., Any]:
    def before(module: Any, args: Any, kwargs: Any) -> Any:
        x_BND = args[0] if args else kwargs["hidden_states"]
        scaled_BND = x_BND * (1 + gain_D).to(x_BND.dtype)
        return ((scaled_BND, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": scaled_BND})

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
    model: Any, first: Trial, settings: TuneSettings, bounds: Mapping[int, float]
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


def _order(count: int, settings: TuneSettings) -> list[int]:
    """Which sequence each step sees: all of them in random order, then again in another."""
    rng = np.random.default_rng(settings.seed)
    rounds = -(-settings.steps // count)
    return [int(i) for _ in range(rounds) for i in rng.permutation(count)][: settings.steps]


def _difference(losses: Mapping[str, Sequence[float]], of: Condition, against: Condition) -> Difference:
    gaps = np.array(losses[of]) - np.array(losses[against])
    return Difference(of, against, float(gaps.mean()), half_width(gaps.tolist()))


def _moved(
    number: int, value: Tensor, starts: Mapping[int, float], least: Mapping[int, float], bounds: Mapping[int, float]
) -> Moved:
    free = value.cpu().double() - least[number]
    return Moved(
        layer=number,
        start=starts[number],
        least=float(free.min()) / starts[number],
        median=float(free.median()) / starts[number],
        largest=float(free.max()) / starts[number],
        bound=bounds[number],
    )


class State:
    """What is known so far: losses of conditions, and for each arm its steps, parameters and optimiser.

    Without a directory nothing is written.
    """

    def __init__(self, directory: str | Path | None, key: str) -> None:
        self._place = None if directory is None else Path(directory)
        self._data: dict[str, Any] = {"key": key, "losses": {}, "arms": {}}
        if self._place is None:
            return
        try:
            self._place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadValue(f"cannot write into {self._place}: {error.strerror}. Give another --out.") from error
        require_plain(self._place, WRITTEN)
        found = saved.restore(self._place, ("key", "losses", "arms"))
        if found is None:
            return
        with self._guard():
            if not all(isinstance(found[part], dict) for part in ("losses", "arms")):
                raise ValueError("parts are missing")
        if found["key"] != key:
            raise BadFile(
                f"{self._place / saved.NAME} is of a run with another model, text or options. Give another --out, or "
                "delete it."
            )
        self._data = found

    def kept(self, name: str, measure: Callable[[], list[float]]) -> list[float]:
        """The losses of a condition, measured once."""
        if name not in self._data["losses"]:
            self._data["losses"][name] = measure()
            self._write()
        return list(self._data["losses"][name])

    def resume(self, arm: str, parameters: Sequence[Any], optimizer: Any) -> int:
        """Put an arm back to where it was saved; returns the steps it has made."""
        known = self._data["arms"].setdefault(arm, {"step": 0, "training": [], "seconds": 0.0})
        with self._guard():
            known["training"] = known["training"][: known["step"]]
            known["seconds"] = float(known["seconds"])
            if known["step"]:
                with torch.no_grad():
                    for parameter, value in zip(parameters, known["parameters"], strict=True):
                        parameter.copy_(value)
                optimizer.load_state_dict(known["optimizer"])
            return int(known["step"])

    def note(self, arm: str, loss: float, seconds: float) -> None:
        """Add a step's loss and time."""
        self._data["arms"][arm]["training"].append(loss)
        self._data["arms"][arm]["seconds"] += seconds

    def save(self, arm: str, step: int, parameters: Sequence[Any], optimizer: Any) -> None:
        """Keep an arm as it is after so many steps."""
        known = self._data["arms"][arm]
        known["step"] = step
        known["parameters"] = [each.detach().clone() for each in parameters]
        known["optimizer"] = optimizer.state_dict()
        self._write()

    def training(self, arm: str) -> list[float]:
        """The losses of an arm's steps."""
        return list(self._data["arms"][arm]["training"])

    def seconds(self, arm: str) -> float:
        """The time that an arm's steps took."""
        return float(self._data["arms"][arm]["seconds"])

    def _write(self) -> None:
        if self._place is not None:
            saved.save(self._place, self._data)

    def _guard(self) -> AbstractContextManager[None]:
        return nullcontext() if self._place is None else saved.guard(self._place)
