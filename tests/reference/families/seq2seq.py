"""The harness for models with an encoder and a decoder: three kinds of attention, captured in one run.

For cross-attention the queries read the stream that enters the cross-attention sublayer, before its norm, and keys
and values read the encoder's output, after its final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import toposcope
from toposcope.checkpoints import Layer
from toposcope.checkpoints.attention import attention, output, project

from .harness import array, compare, far_from_uniform, randomise, watch_inputs, watch_outputs


@dataclass(frozen=True)
class Place:
    """Where one kind of attention is found in their model.

    The first argument of each of `inputs` is the stream entering that attention (before its norm); the first output
    of each of `outputs` is what the attention adds to the stream. `attentions` names their probabilities.
    """

    stack: str
    kind: str
    attentions: str
    inputs: Sequence[nn.Module]
    outputs: Sequence[nn.Module]


def check_encoder_decoder(
    directory: Path,
    family: str,
    setting: str,
    model: nn.Module,
    inputs: dict[str, torch.Tensor],
    places: Callable[[nn.Module], Sequence[Place]],
    *,
    positions: dict[str, nn.Module] | None = None,
    size: float = 1.0,
    prepare: Callable[[Path], None] = lambda _: None,
) -> None:
    """Compare every attention of the model, what it adds to the stream, and the order of our layers.

    `positions` gives, by stack, the module whose output is added to the input. `prepare` may change the saved files.
    """
    model = model.eval()
    randomise(model, size=size)
    model.save_pretrained(directory)
    prepare(directory)
    found = places(model)
    seen = [watch_inputs(place.inputs) for place in found]
    given = [watch_outputs(place.outputs) for place in found]
    tables = {stack: watch_outputs([module])[0] for stack, module in (positions or {}).items()}
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    encoded = array(out.encoder_last_hidden_state[0])
    with toposcope.load(directory) as ours:
        assert ours.family == family
        assert not ours.skipped
        assert [(layer.spec.stack, layer.spec.kind, layer.spec.index) for layer in ours.layers] == _order(found)
        for place, streams, added in zip(found, seen, given, strict=True):
            mine = [
                layer for layer in ours.layers if (layer.spec.stack, layer.spec.kind) == (place.stack, place.kind)
            ]
            theirs = [array(probabilities[0]) for probabilities in out[place.attentions]]
            assert any(far_from_uniform(one) for one in theirs), f"{place.attentions} are nearly uniform"
            source = encoded if place.kind == "cross" else None
            for layer, stream, what, probabilities in zip(mine, streams, added, theirs, strict=True):
                x = array(stream[0][0])
                compare(family, f"{setting} ({place.stack} {place.kind})", attention(layer, x, source), probabilities)
                _check_added(layer, x, source, array(what[0][0]))
        for stack, vectors in tables.items():
            table = next(layer for layer in ours.layers if layer.spec.stack == stack).encoding.input
            assert table is not None
            theirs_p = array(vectors[0]).reshape(-1, vectors[0].shape[-1])
            np.testing.assert_allclose(table.vectors(np.arange(len(theirs_p))), theirs_p, atol=1e-6)


def _order(places: Sequence[Place]) -> list[tuple[str, str, int]]:
    """Encoder layers, then self- and cross-attention of each decoder layer."""
    listed = [(place.stack, place.kind, i) for place in places for i in range(len(place.inputs))]
    return sorted(listed, key=lambda entry: (entry[0] != "encoder", entry[2], entry[1] == "cross"))


def _check_added(layer: Layer, x: np.ndarray, source: np.ndarray | None, theirs: np.ndarray) -> None:
    _, _, values = project(layer, x, source)
    ours = output(layer, attention(layer, x, source), values)
    assert np.abs(ours - theirs).max() <= 1e-4 * max(1.0, float(np.abs(theirs).max()))
