"""Train one byte model of the probe, measure it, and leave it as files; killed and resumed it gives the same numbers.

The recipe is that of `lab/train.py`: AdamW, warm-up and cosine, clipped gradients.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toposcope import refinements as refine
from toposcope._version import __version__
from toposcope.core import saved
from toposcope.core.errors import BadValue, NotFound
from toposcope.core.fields import plain
from toposcope.core.files import make_directory
from toposcope.core.sealed import read_sealed, write_sealed
from toposcope.core.untrusted import require_plain
from toposcope.lab.batches import asked, loss_sum
from toposcope.lab.export import export
from toposcope.lab.parameters import trained_parameters
from toposcope.lab.train import CLIP, SAVE_EVERY, TEST, TRAINING, moments, schedule, stream
from toposcope.runs.directory import RESULT
from toposcope.runs.jobs import EXPECTED, PROBE, PROBE_SCHEMA
from toposcope.studies.language.cells import Biases, Built, build
from toposcope.studies.language.config import ProbeConfig
from toposcope.studies.language.measure import draw, judged, measured
from toposcope.studies.language.texts import find

POINTS = 20  # of the curve
Report = Callable[[int, int, float], None]


def work(
    config: Mapping[str, Any], directory: Path, report: Callable[[Mapping[str, Any]], None], device: str = "cpu"
) -> None:
    """A job of the run store: nothing where the result is there, else train or go on."""
    asked = ProbeConfig.from_dict(config)
    try:
        read_sealed(directory / RESULT, asked.key(), EXPECTED[PROBE])
        saved.clear(directory)
    except NotFound:
        tell = lambda step, steps, loss: report({"step": step, "steps": steps, "loss": loss})  # noqa: E731
        run(asked, directory, report=tell, device=device)


def run(
    config: ProbeConfig,
    directory: str | Path,
    *,
    report: Report | None = None,
    stop_after: int | None = None,
    device: str = "cpu",
) -> dict[str, Any] | None:
    """The result, written to the directory; None where `stop_after` ended the session before the last step.

    The model is trained on `device`, and measured on the CPU.
    """
    place = Path(directory)
    make_directory(place)
    require_plain(place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return _session(config, place, report, stop_after, device)


def _session(
    config: ProbeConfig, place: Path, report: Report | None, stop_after: int | None, device: str
) -> dict[str, Any] | None:
    built = build(config.held, config.model())
    model, text = built.model.to(device), find(config.text).trained
    groups = refine.parameter_groups(
        model, weight_decay=config.weight_decay, lr=config.lr, diagonal_lr=config.diagonal_lr
    )
    rates = [group["lr"] for group in groups]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)
    generator, curious = stream(config.seed, TRAINING), moments(config.steps, POINTS)
    step, curve, times = 0, [], []
    found = saved.restore(place, ("key", "step", "model", "optimizer", "history"))
    if found is not None:
        if found["key"] != config.key():
            raise BadValue(f"{place} holds another run ({found['key']}). Give each configuration a directory.")
        with saved.guard(place):
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
            generator.set_state(found["generator"])
            step = range(config.steps + 1).index(found["step"])
            curve, times = list(found["history"]["curve"]), list(found["history"]["times"])

    def keep() -> None:
        state = {"key": config.key(), "step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        saved.save(place, {**state, "generator": generator.get_state(), "history": {"curve": curve, "times": times}})

    model.train()
    last = config.steps if stop_after is None else min(stop_after, config.steps)
    while step < last:
        batch = draw(config, text, config.batch, generator).to(device)
        started = time.process_time()
        loss = loss_sum(model(batch.ids_BN), batch.labels) / asked(batch.labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule(step, config.steps)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.process_time() - started)
        value = float(loss.detach())
        if step in curious:
            curve.append({"step": step, "loss": value})
        step += 1
        if report is not None:
            report(step, config.steps, value)
        if step % SAVE_EVERY == 0 and step < last:
            keep()
    keep()
    if step < config.steps:
        return None
    model.to("cpu")
    result = _result(config, built, place, curve, times)
    write_sealed(place / RESULT, config.key(), result)
    saved.clear(place)
    return result


def _result(
    config: ProbeConfig, built: Built, place: Path, curve: list[dict[str, Any]], times: list[float]
) -> dict[str, Any]:
    """Measure the model as it was trained, then export it and read the verdicts off the files."""
    began = time.process_time()
    model = built.model
    trained = trained_parameters(model)
    numbers = measured(config, model, stream(config.seed, TEST))
    added = None if built.added is None else _moved(built)
    export(built.plain(place), place / "model", task=config.task, run=config.key())
    said = judged(place / "model", built.promised, built.judged)
    return plain(
        {
            "schema": PROBE_SCHEMA,
            "toposcope": __version__,
            "key": config.key(),
            "config": config.as_dict(),
            "finished": True,
            "steps": config.steps,
            "parameters": trained,
            "redundant": built.redundant,
            "promise": built.promise,
            **numbers,
            **said,
            "added": added,
            "curve": curve,
            "step_seconds": statistics.median(times),
            "seconds": sum(times) + time.process_time() - began,
        }
    )


def _moved(built: Built) -> dict[str, Any]:
    """D (or the control's biases) at the end, D relative to where it started."""
    added = built.added
    assert added is not None
    everything = torch.cat([value.flatten() for value in added.values().values()])
    found = {"mean": float(everything.mean()), "least": float(everything.min()), "most": float(everything.max())}
    if isinstance(added, Biases):
        return {**found, "size": _rms(everything)}
    starts = torch.stack([part.start for part in added.parts.values()])
    ratio = everything / float(starts[0])
    return {**found, "start": float(starts[0]), "ratio_mean": float(ratio.mean()), "log_moved": _rms(ratio.log())}


def _rms(values: Tensor) -> float:
    return float(values.pow(2).mean().sqrt())
