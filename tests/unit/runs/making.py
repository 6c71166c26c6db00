"""A result as a training run leaves it, without any training; and what every result can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema

import toposcope
from toposcope.core.result import Result
from toposcope.report.kinds import document


def trained(**changes: Any) -> dict[str, Any]:
    undefined = dict.fromkeys(("d_rel", "share", "gini", "di", "head", "second", "same_head", "interval"))
    layer = {"layer": 0, "accuracy": [0.5, 0.5], "d_max": 0.25, **undefined}
    ablation = {"sentences": 8, "base": 0.875, "floor": 0.25, "zero": [layer], "mean": [layer], "joint": None}
    return {
        "schema": "toposcope/train/2",
        "provenance": {"subjects": [], "options": {}, "seconds": 0.0, "toposcope": "0", "ran": None},
        "skipped": [],
        "key": "0" * 16,
        "config": {"task": "distance", "encoding": "rope", "seed": 0, "variant": "described"},
        "finished": True,
        "step": 400,
        "steps": 400,
        "accuracy": 0.875,
        "loss": 0.5,
        "floor": 0.25,
        "prior": 0.25,
        "ceiling": 1.0,
        "parameters": 1000,
        "curve": [{"step": 0, "loss": 2.0, "accuracy": 0.25}, {"step": 399, "loss": 0.5, "accuracy": 0.875}],
        "gradients": [],
        "spectra": [],
        "hessian": [],
        "ablation": {**ablation, "draws": 200, "level": 0.95},
        "seconds": 21.5,
        "probe_seconds": 1.0,
        "seconds_per_sample": 1e-4,
        "directory": None,
        "trained_now": True,
        "device": "cpu",
        **changes,
    }


def shows_itself(result: Result, place: Path, *, figure: bool = True) -> str:
    """Print, save, read, frame and draw a result; returns what it prints."""
    text = str(result)
    assert max(map(len, text.splitlines())) <= 80
    again = toposcope.read(result.save(place / "saved.json"))
    assert again == result
    assert str(again) == text
    jsonschema.validate(result.as_dict(), document(result.kind))
    if result.tables():
        assert list(result.frame().columns) == next(iter(result.csv().splitlines())).split(",")
    assert "<script" in result.html()
    assert "<script" not in result._repr_html_()
    if figure:
        assert result.figure(place / "drawn.svg").read_text().startswith("<svg")
    return text
