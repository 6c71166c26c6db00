"""What stands in for the output of a head that is taken out: zero, its mean, or its output on another sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from toposcope.core.errors import BadValue
from toposcope.models.device import double
from toposcope.models.instrument import Call, Instrument
from toposcope.models.score import Trial

Method = Literal["zero", "mean", "resample"]
METHODS: dict[Method, str] = {
    "zero": "outputs set to 0",
    "mean": "outputs set to their mean over the text",
    "resample": "outputs taken from another sequence of the same length",
}
StandIn = Callable[[int, Sequence[int]], Any]  # layer, its heads -> what `ablated` takes as `by`


def stand_ins(instrument: Instrument, trials: Sequence[Trial], method: Method, *, seed: int = 0) -> list[StandIn]:
    """For each trial, what stands in for heads there. Runs the model once over the trials for means."""
    if method == "zero":
        return [lambda layer, heads: 0.0] * len(trials)
    if method == "mean":
        means = head_means(instrument, trials)
        return [lambda layer, heads: means[layer][list(heads)]] * len(trials)
    return [_Other(instrument, trials[other]) for other in partners(trials, seed)]


def head_means(instrument: Instrument, trials: Sequence[Trial]) -> list[Any]:
    """The mean output of every head over all positions of all trials: one tensor (H, V) for each layer."""
    sums: list[Any] = [0.0] * len(instrument.sites)
    counts = [0] * len(instrument.sites)

    def note(call: Call, output_BNHV: Any) -> None:
        sums[call.site.number] = sums[call.site.number] + double(output_BNHV).sum((0, 1))
        counts[call.site.number] += output_BNHV.shape[0] * output_BNHV.shape[1]

    for trial in trials:
        _watched(instrument, trial, note)
    return [(total / count).float() for total, count in zip(sums, counts, strict=True)]


def partners(trials: Sequence[Trial], seed: int) -> list[int]:
    """For each trial another one of the same length, drawn once."""
    rng = np.random.default_rng(seed)
    found = []
    for number, trial in enumerate(trials):
        others = [i for i, each in enumerate(trials) if i != number and each.tokens == trial.tokens]
        if not others:
            raise BadValue(
                f"'resample' takes a head's output from another sequence of the same length, and none other has "
                f"{trial.tokens} tokens. Give more --sequences of a longer text, or --method mean."
            )
        found.append(int(rng.choice(others)))
    return found


class _Other:
    """The outputs of all heads on another trial, computed when first asked for and kept while this object lives."""

    def __init__(self, instrument: Instrument, trial: Trial) -> None:
        self._instrument, self._trial = instrument, trial
        self._outputs: dict[int, Any] = {}

    def __call__(self, layer: int, heads: Sequence[int]) -> Any:
        if not self._outputs:
            _watched(self._instrument, self._trial, lambda call, out: self._outputs.setdefault(call.site.number, out))
        return self._outputs[layer][:, :, list(heads)]


def _watched(instrument: Instrument, trial: Trial, note: Callable[[Call, Any], Any]) -> None:
    """Run a trial on the whole model and show every attention: edits of others wait outside."""
    import torch

    kept, instrument.edits[:] = list(instrument.edits), []
    instrument.observers.append(note)
    try:
        with torch.no_grad():
            instrument.model(**trial.inputs)
    finally:
        instrument.observers.remove(note)
        instrument.edits[:] = kept
