"""Kinds of work, by name: each is a function of a configuration, a directory and a callback for progress.

Such a function does nothing where its directory already holds its result, goes on from whatever it kept there
otherwise, and writes its result last, with `directory.write_result`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.runs.directory import Report

Work = Callable[[Mapping[str, Any], Path, Report], None]
KINDS = {"train": "toposcope.runs.jobs:train"}


def work(kind: str) -> Work:
    """The function behind a kind: one of `KINDS`, or any importable `module:function`."""
    place = KINDS.get(kind, kind)
    module, colon, name = place.partition(":")
    if not colon:
        raise BadValue(f"'{kind}' is no kind of run. {did_you_mean(kind, KINDS)}")
    return getattr(importlib.import_module(module), name)


def train(config: Mapping[str, Any], directory: Path, report: Report) -> None:
    """Train one model of the lab."""
    from toposcope.lab.config import RunConfig
    from toposcope.lab.train import train as run

    seen: float | None = None  # the last accuracy, which is measured now and then

    def tell(step: int, steps: int, loss: float, accuracy: float | None) -> None:
        nonlocal seen
        seen = seen if accuracy is None else accuracy
        report({"step": step, "steps": steps, "loss": loss, "accuracy": seen})

    run(RunConfig.from_dict(config), directory, report=tell)
