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
from toposcope.checkpoints.view import Model

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


def difference(
    spec: LayerSpec, source: TensorSource, taps: Taps, noted: Recorded, number: int, start: int = 0
) -> tuple[float, float]:
    """The largest difference of attention probabilities, and of attention's output relative to its largest entry.

    `start` is the position of the first token.
    """
    call = noted.calls[number]
    theirs = arrays(call, noted.texts)[3]
    length = theirs.shape[2]
    x = _shaped(call.layer_input if not taps.reads else _passed(noted, taps.reads, number).x, noted, length)
    out = _shaped(_passed(noted, taps.o_module, number + 1).y, noted, length)
    other = None
    if taps.keys_read is not None:
        other = _shaped(_passed(noted, taps.keys_read, number).x, noted, theirs.shape[3])
    bare = replace(spec, output_norm=None, output_gain=None)
    layer = Model(ModelSpec("measured", (bare,)), source, {}, read_layer).layers[0]
    worst, worst_out = 0.0, 0.0
    for text in range(min(2, noted.texts)):
        keys = None if other is None else other[text]
        ours = attention(layer, x[text], keys, positions=None if start == 0 else start + np.arange(length))
        if ours.shape != theirs[text].shape:
            raise Refused("attention came out in another shape")
        worst = max(worst, float(np.abs(ours - theirs[text]).max()))
        mine = output(layer, ours, project(layer, x[text], keys)[2], x[text])
        if mine.shape != out[text].shape:
            raise Refused("attention's output came out in another shape")
        largest = max(float(np.abs(out[text]).max()), 1e-30)
        worst_out = max(worst_out, float(np.abs(mine - out[text]).max()) / largest)
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
