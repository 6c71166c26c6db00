"""A fresh small copy of a running model's own class: what transformers itself does with such a configuration."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from toposcope.checkpoints.generic.bounds import Deadline, quiet
from toposcope.checkpoints.generic.shrink import attempts, build, foretell, from_settings
from toposcope.live.running import Running

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_DEPTH, _SECONDS = 4, 20


def fresh(running: Running, **settings: Any) -> Running | None:
    """The copy, with random weights, in float32; None where not all of it is transformers' own, or no copy runs.

    `settings` replace those of its configuration, at the top and in its rotary settings, where it has them.
    """
    kind, config = type(running.model), getattr(running.model, "config", None)
    classes = {type(module) for module in running.model.modules()}
    own = [each for each in classes if each.__module__.startswith("transformers.")]
    if kind not in own or not all(_unpatched(each) for each in own):
        return None
    for values in attempts(config):
        try:
            return _copy(kind, from_settings(type(config), _shallow(_replaced(values, settings))))
        except Exception:  # noqa: BLE001 - whatever a class says to a small configuration: try the next
            continue
    return None


def _unpatched(kind: Any) -> bool:
    """Whether what a class runs, and what its file turns by, is transformers': a patched one is no reference."""
    beside = vars(sys.modules[kind.__module__]).items()
    turning = [each for name, each in beside if "rot" in name and inspect.isfunction(each)]
    return all(
        str(inspect.unwrap(each).__module__).startswith(("transformers.", "torch."))
        for each in (kind.forward, *turning)
    )


def _copy(kind: Any, config: Any) -> Running:
    """A model of this configuration that was seen to run."""
    deadline = Deadline(_SECONDS)
    with quiet():
        foretell(kind, config, deadline)
        copy = Running(build(kind, config, deadline))
        copy(copy.tokens(4, seed=0)[None])
    return copy


def _replaced(values: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with those given in place of their own, wherever they stand."""
    return {
        key: settings[key] if key in settings else _replaced(value, settings) if isinstance(value, dict) else value
        for key, value in values.items()
    }


def _shallow(values: dict[str, Any]) -> dict[str, Any]:
    """The settings with at most `_DEPTH` layers; lists of one entry per layer are cut alike."""
    counts = {key: values[key] for key in _LAYERS if isinstance(values.get(key), int)}
    cut: dict[str, Any] = {}
    for key, value in values.items():
        if key in counts:
            cut[key] = min(value, _DEPTH)
        elif isinstance(value, list) and len(value) in counts.values():
            cut[key] = value[:_DEPTH]
        else:
            cut[key] = _shallow(value) if isinstance(value, dict) else value
    return cut
