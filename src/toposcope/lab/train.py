"""Train one small model on one task: the loop, its checkpoints, and what it measures on the way.

The run is decided by its configuration: the same one gives the same weights bit for bit (with the same number of
threads, on the same device), whether it ran through or was killed and resumed, and whether or not it was watched by
probes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from toposcope.core import saved
from toposcope.core.errors import BadValue
from toposcope.core.fields import rebuilt
from toposcope.core.files import make_directory
from toposcope.core.memory import require_memory
from toposcope.core.untrusted import require_plain
from toposcope.lab import probes
from toposcope.lab.ablation import ablation_map
from toposcope.lab.batches import accuracy, asked, loss_sum, parts, parts_worth, without_class_zero
from toposcope.lab.config import RunConfig
from toposcope.lab.export import export
from toposcope.lab.model import ModelConfig, Transformer
from toposcope.lab.packed import passes_worth, scored
from toposcope.lab.result import (
    WRITTEN,
    CurvePoint,
    GradientNorms,
    LogitSpectra,
    Sharpness,
    TrainResult,
    steps_to,
)
from toposcope.lab.tasks import Batch, Task
from toposcope.models.device import running_on

Report = Callable[[int, int, float, float | None], None]

TEST_SENTENCES, GLANCE = 2048, 256  # for the final accuracy; for the curve
MOMENTS, SHARP_MOMENTS = 20, 5  # how often gradients and spectra, and how often the curvature is measured
SAVE_EVERY = 50
WARM_UP = 0.06
CLIP = 1.0
# each source of chance has a stream of its own, far from the others
TRAINING, TEST, PROBE, DROPOUT = 1, 2, 3, 4


@dataclass
class History:
    """What was measured so far, and how long it took."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    gradients: list[dict[str, Any]] = field(default_factory=list)
    spectra: list[dict[str, Any]] = field(default_factory=list)
    hessian: list[dict[str, Any]] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    seconds: float = 0.0
    probe_seconds: float = 0.0
    step_seconds: float = 0.0


def train(
    config: RunConfig,
    directory: str | Path,
    *,
    report: Report | None = None,
    stop_after: int | None = None,
    device: str = "cpu",
) -> TrainResult:
    """Train, or go on, or give back what is there: the result of this configuration in this directory.

    `report(step, steps, loss, accuracy)` is called after every step; accuracy is None but at the moments of the
    curve. `stop_after` ends the session at that step, to be resumed by another call. Sentences are drawn on the CPU,
    the same ones for every `device`.
    """
    place = Path(directory)
    require_plain(place, WRITTEN)
    done = TrainResult.stored(place)
    if done is not None:
        _own(done.key, config, place)
        saved.clear(place)  # a session may have been killed just before this
        return done
    there = torch.device(device)
    make_directory(place)
    with torch.random.fork_rng(devices=[there] if there.type == "cuda" else []):
        return _session(config, place, report, stop_after, there)


def _require_memory(model: ModelConfig, batch: int) -> None:
    """Weights, gradients and AdamW's two moments of each, and one batch: what a run needs at the least."""
    per_layer = 2 * (model.heads + model.groups) * model.value_dim + 2 * model.ff
    weights = model.width * (model.layers * per_layer + model.vocabulary + model.classes + model.length)
    tokens = batch * model.length * (2 * model.width + model.ff)
    require_memory(4 * (4 * weights + tokens), f"training a model of {weights:.1e} weights", "Use smaller sizes.")


@dataclass
class _State:
    """All that changes while a model is trained."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    history: History = field(default_factory=History)
    step: int = 0

    def restore(self, config: RunConfig, place: Path) -> None:
        """Go on where an earlier session ended, if there was one."""
        found = saved.restore(place, ("key", "step", "model", "optimizer", "history"))
        if found is None:
            return
        _own(found["key"], config, place)
        with saved.guard(place):
            self.model.load_state_dict(found["model"])
            self.optimizer.load_state_dict(found["optimizer"])
            self.generator.set_state(found["generator"])
            torch.set_rng_state(found["dropout"])
            if "device_dropout" in found and self.model.device.type == "cuda":
                torch.cuda.set_rng_state(found["device_dropout"], self.model.device)
            self.history = History(**found["history"])
            self.step = range(config.settings["steps"] + 1).index(found["step"])

    def save(self, config: RunConfig, place: Path) -> None:
        """Keep it all, the dropout's generator included."""
        parts = {"model": self.model, "optimizer": self.optimizer}
        states = {name: part.state_dict() for name, part in parts.items()}
        chance = {"generator": self.generator.get_state(), "dropout": torch.get_rng_state()}
        if self.model.device.type == "cuda":
            chance["device_dropout"] = torch.cuda.get_rng_state(self.model.device)
        told = {"key": config.key(), "step": self.step, "history": vars(self.history)}
        saved.save(place, {**told, **states, **chance})


def _session(
    config: RunConfig, place: Path, report: Report | None, stop_after: int | None, device: torch.device
) -> TrainResult:
    began = time.perf_counter()
    task, settings = config.make_task(), config.settings
    steps, batch_size = settings["steps"], settings["batch"]
    _require_memory(config.model(), batch_size)
    model = Transformer(config.model()).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings["lr"], betas=tuple(settings["betas"]), weight_decay=settings["weight_decay"],
        fused=True,
    )  # fmt: skip
    state = _State(model, optimizer, stream(config.seed, TRAINING))
    torch.manual_seed(_seed(config.seed, DROPOUT))
    cuts = 1 if model.sees_padding else parts_worth(batch_size, task.length, settings["width"])
    passes = min(cuts, passes_worth(batch_size, task.length))
    groups = -(-cuts // passes)
    evaluator = Evaluator(config, task, model, cuts)
    state.restore(config, place)
    history, earlier = state.history, state.history.seconds
    if str(device) not in history.devices[-1:]:
        history.devices.append(str(device))

    def keep() -> None:
        history.seconds = earlier + time.perf_counter() - began
        state.save(config, place)

    last = steps if stop_after is None else min(steps, stop_after)
    model.train()
    with running_on(model):
        while state.step < last:
            started = time.perf_counter()
            batch = evaluator.counted(task.generate(batch_size, state.generator)).to(device)
            total = max(asked(batch.labels), 1)
            loss = 0.0
            for part in parts(batch, passes):
                part_loss = loss_sum(*scored(model, part, groups)) / total
                part_loss.backward()
                loss += part_loss.item()
            if not math.isfinite(loss):
                raise BadValue(
                    f"the loss became {loss} at step {state.step + 1} of {config.task} with {config.encoding}. "
                    f"Use a smaller learning rate than {settings['lr']}."
                )
            seen = evaluator.measure(state.step, loss, history)
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
            for group in optimizer.param_groups:
                group["lr"] = settings["lr"] * schedule(state.step, steps)
            optimizer.step()
            optimizer.zero_grad()
            state.step += 1
            history.step_seconds += time.perf_counter() - started - seen.seconds
            if report is not None:
                report(state.step, steps, loss, seen.accuracy)
            if state.step % SAVE_EVERY == 0 and state.step < last:
                keep()
        keep()
        result = evaluator.result(state.step, steps, history, batch_size)
    if result.finished:
        export(model, place / "model", task=config.task, run=config.key())
        result.write(place)
        saved.clear(place)
    return result


def schedule(step: int, steps: int, warm_up: float = WARM_UP) -> float:
    """The share of the learning rate at a step: linear warm-up, then a cosine to 0."""
    warm = max(1, round(warm_up * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def moments(steps: int, count: int) -> frozenset[int]:
    """`count` steps spread evenly from the first to the last."""
    return frozenset(round(i * (steps - 1) / max(1, count - 1)) for i in range(count))


def stream(seed: int, which: int) -> torch.Generator:
    """A generator for one source of chance of a run."""
    return torch.Generator().manual_seed(_seed(seed, which))


def fixed_sentences(config: RunConfig, task: Task, count: int = TEST_SENTENCES) -> Batch:
    """The fixed test sentences of a run; never part of its training."""
    return task.generate(count, stream(config.seed, TEST))


def _seed(seed: int, which: int) -> int:
    return seed * 16 + which


def _own(key: str, config: RunConfig, place: Path) -> None:
    if key != config.key():
        raise BadValue(
            f"{place} holds another run ({key}); this one is {config.key()}. Give each configuration a directory."
        )


@dataclass(frozen=True)
class Glance:
    """What measuring cost, and the accuracy that was seen."""

    seconds: float = 0.0
    accuracy: float | None = None


class Evaluator:
    """Everything a run measures beside training, at fixed moments."""

    def __init__(self, config: RunConfig, task: Task, model: Transformer, cuts: int) -> None:
        self.config, self.task, self.model, self.cuts = config, task, model, cuts
        self.skip_zero = config.switches.skip_class_zero and not model.config.latent
        self.test = self.counted(fixed_sentences(config, task)).to(model.device)
        self.glance = Batch(self.test.ids_BN[:GLANCE], self.test.lengths_B[:GLANCE], self.test.labels[:GLANCE])
        steps = config.settings["steps"]
        self.moments = moments(steps, config.curve_points)
        self.probed = moments(steps, MOMENTS) if config.probes else frozenset()
        self.sharp = moments(steps, SHARP_MOMENTS) if config.probes else frozenset()
        self.sentences = probes.probe_sentences(task, 4, _seed(config.seed, PROBE)).to(model.device)
        self.curved = self.counted(task.generate(16, stream(config.seed, PROBE))).to(model.device)

    def counted(self, batch: Batch) -> Batch:
        """The batch as this run counts it: without class 0 where the quirk says so."""
        return without_class_zero(batch) if self.skip_zero else batch

    def measure(self, step: int, loss: float, history: History) -> Glance:
        """Measure what is due at this step, with the step's gradients in place and before they are used."""
        if step not in self.moments | self.probed | self.sharp:
            return Glance()
        began = time.perf_counter()
        seen = None
        if step in self.moments:
            seen, _ = accuracy(self.model, self.glance, cuts=self.cuts)
            history.curve.append({"step": step, "loss": loss, "accuracy": seen})
        if step in self.probed:
            history.gradients.append({"step": step, **probes.gradient_norms(self.model)})
            history.spectra.append({"step": step, **probes.logit_spectra(self.model, self.sentences)})
        if step in self.sharp:
            history.hessian.append({"step": step, **probes.sharpness(self.model, self.curved)})
        took = time.perf_counter() - began
        history.probe_seconds += took
        return Glance(took, seen)

    def result(self, step: int, steps: int, history: History, batch_size: int) -> TrainResult:
        """The result as it stands; the final accuracy only after the last step."""
        finished = step >= steps
        began = time.perf_counter()
        right, loss, removed = None, None, None
        if finished:
            cuts = 1 if self.model.sees_padding else 2 * self.cuts  # a part is trimmed: there would be less to see
            right, loss = accuracy(self.model, self.test, cuts=cuts)
            if self.config.ablation:
                removed = ablation_map(
                    self.model, self.test, self.task.floor, seed=self.config.seed, pairs=self.config.pairs
                )
        return TrainResult(
            key=self.config.key(),
            config=self.config.as_dict(),
            finished=finished,
            step=step,
            steps=steps,
            accuracy=right,
            loss=loss,
            floor=self.task.floor,
            prior=self.task.prior,
            ceiling=self.task.ceiling.value,
            parameters=sum(p.numel() for p in self.model.parameters()),
            curve=rebuilt(tuple[CurvePoint, ...], history.curve),
            steps_to_90=steps_to(history.curve),
            gradients=rebuilt(tuple[GradientNorms, ...], history.gradients),
            spectra=rebuilt(tuple[LogitSpectra, ...], history.spectra),
            hessian=rebuilt(tuple[Sharpness, ...], history.hessian),
            ablation=removed,
            seconds=history.seconds + time.perf_counter() - began,
            probe_seconds=history.probe_seconds,
            seconds_per_sample=history.step_seconds / max(1, step * batch_size),
            device=", then ".join(history.devices),
        )
