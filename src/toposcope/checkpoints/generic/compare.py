"""Our own attention, read through our own reader, against the running copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from toposcope.checkpoints.attention import attention, output, project
from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.record import Array, Passed, Recorded, arrays, flat
from toposcope.checkpoints.read import read_layer
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, ModelSpec
from toposcope.checkpoints.view import Layer, Model

ATTENTION, OUTPUT = 1e-4, 1e-3  # the largest differences that are accepted; of the output relative to its largest


@dataclass(frozen=True)
class Taps:
    """The modules between which a layer's attention lies, by name: see `describe.Drafted`."""

    reads: str
    o_module: str
    keys_read: str | None

    def moved(self, old: str, new: str) -> Taps:
        """The same of another layer."""

        def move(name: str) -> str:
            return new + name[len(old) :] if name.startswith(f"{old}.") else name

        return Taps(move(self.reads), move(self.o_module), None if self.keys_read is None else move(self.keys_read))

    def names(self) -> set[str]:
        return {each for each in (self.reads, self.o_module, self.keys_read) if each}


def readable(spec: LayerSpec, source: TensorSource) -> Layer:
    """The layer as our own reader gives it, up to its output map."""
    bare = replace(spec, output_norm=None, output_gain=None)
    return Model(ModelSpec("measured", (bare,)), source, {}, read_layer).layers[0]


def boosted(layer: Layer, boost: float) -> Layer:
    """The same layer with its logits multiplied."""
    weights = layer.weights
    return Layer(0, replace(layer.spec, scale=layer.spec.scale * boost), lambda spec: weights)


def difference(layer: Layer, taps: Taps, noted: Recorded, number: int, start: int = 0) -> tuple[float, float]:
    """The largest difference of attention probabilities, and of attention's output relative to its largest entry.

    `start` is the position of the first token. Only the last text of the run is looked at.
    """
    call = noted.calls[number]
    theirs = arrays(call, noted.texts)[3]
    length = theirs.shape[2]
    x = _shaped(call.layer_input if not taps.reads else _passed(noted, taps.reads, number).x, noted, length)[-1]
    out = _shaped(_passed(noted, taps.o_module, number + 1).y, noted, length)[-1]
    keys = None
    if taps.keys_read is not None:
        keys = _shaped(_passed(noted, taps.keys_read, number).x, noted, theirs.shape[3])[-1]
    ours = attention(layer, x, keys, positions=None if start == 0 else start + np.arange(length))
    mine = output(layer, ours, project(layer, x, keys)[2], x)
    if ours.shape != theirs[-1].shape or mine.shape != out.shape:
        raise Refused("attention came out in another shape")
    worst = float(np.abs(ours - theirs[-1]).max())
    worst_out = float(np.abs(mine - out).max() / max(float(np.abs(out).max()), 1e-30))
    if not (np.isfinite(worst) and np.isfinite(worst_out)):
        raise Refused("attention came out as no number")
    return worst, worst_out


def _passed(noted: Recorded, name: str, number: int) -> Passed:
    """What went through a module last before attention `number` was computed."""
    found = [each for each in (*noted.linears, *noted.norms) if each.name == name and each.after <= number]
    if not found:
        raise Refused(f"'{name}' did not run")
    return found[-1]


def _shaped(tensor: Any, noted: Recorded, length: int) -> Array:
    found = None if tensor is None else flat(tensor, noted.texts, length)
    if found is None:
        raise Refused("activations of unknown layout")
    return found
