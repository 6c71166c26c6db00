"""A result as a training run leaves it, without any training."""

from __future__ import annotations

from typing import Any


def trained(**changes: Any) -> dict[str, Any]:
    layer = {"layer": 0, "accuracy": [0.5, 0.5], "di": None, "d_max": 0.25}
    return {
        "schema": "toposcope/train/1",
        "toposcope": "0",
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
        "ablation": {"sentences": 8, "base": 0.875, "floor": 0.25, "zero": [layer], "mean": [layer], "joint": None},
        "seconds": 21.5,
        "probe_seconds": 1.0,
        "seconds_per_sample": 1e-4,
        **changes,
    }
