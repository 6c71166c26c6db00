"""Kinds of work, by name: what each does, and what its result must hold.

The work of a kind is a function of a configuration, a directory and a callback for progress, and of the `device` to
work on where that is not the CPU. It does nothing where
its directory already holds its result, goes on from whatever it kept there otherwise, and writes its result last.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.core.sealed import COUNT, SHARE, SIZE, Expected, Number
from toposcope.lab import result as trained

Report = Callable[[Mapping[str, Any]], None]
Work = Callable[..., None]  # of a configuration, a directory, a report, and `device=` where it is not the CPU
TRAIN = "train"
PROBE, PROBE_SCHEMA = "toposcope.studies.language.probe:work", "toposcope/probe/1"  # a byte model of the studies
COLLAPSE, COLLAPSE_SCHEMA = "toposcope.studies.collapse:work", "toposcope/collapse/1"  # a simulation of the studies
KINDS = {TRAIN: "toposcope.runs.jobs:train"}
EXPECTED: Mapping[str, Expected] = {
    TRAIN: trained.EXPECTED,
    PROBE: {
        "schema": PROBE_SCHEMA,
        "config": {},
        "finished": True,
        **dict.fromkeys(("steps", "parameters"), COUNT),
        "accuracy": SHARE,
        **dict.fromkeys(("bits_held", "bits_other", "seconds", "step_seconds"), SIZE),
        "noise_cost": Number(),
        "longer_cost": Number(missing=True),
        **{name: [Number(missing=True)] for name in ("cosine", "rank", "radial", "dispersion")},
        "curve": [{"step": COUNT, "loss": SIZE}],
    },
    COLLAPSE: {
        "schema": COLLAPSE_SCHEMA,
        "config": {},
        "finished": True,
        "time": Number(missing=True),
        "evaluations": COUNT,
        "end": SIZE,
        "moved": Number(),
    },
}


@dataclass(frozen=True)
class Job:
    """What is to be done: a key that names it for ever, the kind of work, and its configuration."""

    key: str
    kind: str
    config: Mapping[str, Any]


def work(kind: str) -> Work:
    """The function behind a kind: one of `KINDS`, or any importable `module:function`."""
    place = KINDS.get(kind, kind)
    module, colon, name = place.partition(":")
    if not colon:
        raise BadValue(f"unknown kind of run '{kind}'. {did_you_mean(kind, KINDS)}")
    return getattr(importlib.import_module(module), name)


def train(config: Mapping[str, Any], directory: Path, report: Report, device: str = "cpu") -> None:
    """Train one model of the lab."""
    from toposcope.lab.config import RunConfig
    from toposcope.lab.train import train as run

    seen: float | None = None  # the last accuracy, which is measured now and then

    def tell(step: int, steps: int, loss: float, accuracy: float | None) -> None:
        nonlocal seen
        seen = seen if accuracy is None else accuracy
        report({"step": step, "steps": steps, "loss": loss, "accuracy": seen})

    run(RunConfig.from_dict(config), directory, report=tell, device=device)
