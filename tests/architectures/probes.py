"""What the comparison would notice: a right description is broken in one place, and compared again."""

from __future__ import annotations

import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import toposcope
from tests.architectures.builder import build
from tests.architectures.compare import differences
from tests.architectures.given import inputs
from tests.architectures.judge import BATCH, LENGTH, SEED, faint_run
from tests.architectures.record import record
from toposcope.checkpoints import Model
from toposcope.checkpoints.read import read_layer
from toposcope.checkpoints.spec import LayerSpec
from toposcope.core.errors import ToposcopeError
from toposcope.encodings.record import NONE

TYPES = [
    "llama",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "gpt_oss",
    "llama4_text",
    "ministral3",
    "cwm",
    "olmoe",
    "phimoe",
    "ernie4_5",
    "minimax_m2",
    "qwen3_next",
    "hunyuan_v1_dense",
    "deepseek_v3",
    "bloom",
]


def probe(model_type: str) -> dict[str, bool]:
    """For each thing that can be broken in the reading of a causal type: whether the comparison notices."""
    noticed: dict[str, bool] = {}
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as directory:
        warnings.simplefilter("ignore")
        theirs = build(model_type, "causal")
        theirs.save_pretrained(directory)
        runs = [record(theirs, inputs(theirs, BATCH, LENGTH, SEED)), faint_run(theirs, BATCH)]
        with toposcope.load(Path(directory)) as ours:
            for what, broken in BROKEN.items():
                layers = tuple(broken(layer) or layer for layer in ours.spec.layers)
                if all(one is other for one, other in zip(layers, ours.spec.layers, strict=True)):
                    continue
                wrong = Model(replace(ours.spec, layers=layers), ours.source, {}, read_layer)
                noticed[what] = any(_differs(wrong, theirs, run) for run in runs if run is not None)
    return noticed


def probes(types: list[str]) -> dict[str, tuple[int, int]]:
    """For each thing that can be broken: how often it was noticed, of how many types."""
    counts: dict[str, list[bool]] = defaultdict(list)
    for each in types:
        for what, seen in probe(each).items():
            counts[what].append(seen)
    return {what: (sum(counts[what]), len(counts[what])) for what in BROKEN if what in counts}


def _differs(wrong: Model, theirs: object, run: object) -> bool:
    try:
        found, _ = differences(wrong, theirs, run, BATCH)  # type: ignore[arg-type]
    except ToposcopeError:
        return True
    return not all(each.agrees for each in found)


def _normed(layer: LayerSpec, **changes: object) -> LayerSpec | None:
    return None if layer.input_norm is None else replace(layer, input_norm=replace(layer.input_norm, **changes))


def _kind(layer: LayerSpec) -> LayerSpec | None:
    return layer.input_norm and _normed(layer, kind="layer" if layer.input_norm.kind == "rms" else "rms")


def _eps(layer: LayerSpec) -> LayerSpec | None:
    return layer.input_norm and _normed(layer, eps=10 * layer.input_norm.eps)


def _offset(layer: LayerSpec) -> LayerSpec | None:
    return layer.input_norm and _normed(layer, offset=1 - layer.input_norm.offset)


def _pairing(layer: LayerSpec) -> LayerSpec | None:
    rotary = layer.encoding.rotary
    if rotary is None:
        return None
    first, count = rotary.pairs_F2.min(), len(rotary.pairs_F2)
    number = np.arange(count)
    halves, neighbours = np.stack([number, number + count], 1), np.stack([2 * number, 2 * number + 1], 1)
    other = neighbours if rotary.pairing == "half" else halves
    return replace(layer, encoding=replace(layer.encoding, rotary=replace(rotary, pairs_F2=other + first)))


def _base(layer: LayerSpec) -> LayerSpec | None:
    rotary = layer.encoding.rotary
    if rotary is None:
        return None
    slower = 2.0 ** -(np.arange(len(rotary.pairs_F2)) / len(rotary.pairs_F2))
    turned = replace(rotary, frequencies_at=lambda context: rotary.frequencies(context) * slower)
    return replace(layer, encoding=replace(layer.encoding, rotary=turned))


def _without(part: str) -> Callable[[LayerSpec], LayerSpec | None]:
    return lambda layer: None if getattr(layer, part) is None else replace(layer, **{part: None})


BROKEN: dict[str, Callable[[LayerSpec], LayerSpec | None]] = {
    "the scale, 1 % larger": lambda layer: replace(layer, scale=1.01 * layer.scale),
    "the norm before attention, left out": _without("input_norm"),
    "the norm, of the other kind": _kind,
    "the norm's gain, larger by 1": _offset,
    "the norm's epsilon, ten times as large": _eps,
    "the rotation, left out": lambda layer: None if layer.encoding.rotary is None else replace(layer, encoding=NONE),
    "the rotation, channels paired otherwise": _pairing,
    "the rotation, of twice the base": _base,
    "the norm of queries, left out": _without("q_norm"),
    "the norm of values, left out": _without("v_norm"),
    "the window, wider by 1": lambda layer: None if layer.reach is None else replace(layer, reach=layer.reach + 1),
    "the window, left out": _without("reach"),
    "the chunks, left out": _without("chunk"),
    "the cap of the logits, left out": _without("softcap"),
    "the sinks, left out": _without("sinks"),
    "the gate, left out": _without("gate"),
    "the query scale, left out": lambda layer: (
        None
        if layer.encoding.query_scale is None
        else replace(layer, encoding=replace(layer.encoding, query_scale=None))
    ),
    "the bias, left out": lambda layer: (
        None if layer.encoding.bias is None else replace(layer, encoding=replace(layer.encoding, bias=None))
    ),
    "the norm after rotation, before it": lambda layer: (
        replace(layer, qk_norm_after=False) if layer.qk_norm_after else None
    ),
}
