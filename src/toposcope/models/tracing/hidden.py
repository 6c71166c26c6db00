"""The residual stream of a real model on a text: what enters each attention layer, and what attention adds to it.

The states are those that transformers computes in float32. The attention branch

    a_i = output_norm(sum_h O_h sum_j P_ij^h V_h norm(x_j) + b_o)

is computed from them and from Toposcope's own view of the weights in float64, the same way for every family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.attention import attention, output, project
from toposcope.checkpoints.view import Layer, Model
from toposcope.core.errors import BadValue
from toposcope.models.corpus import Corpus, Ids
from toposcope.models.device import home

Array = NDArray[np.float64]
TOKENS = 64  # that are followed through depth, at most


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """One text in one model. `entering[l]` (n, d) is the residual stream at the input of layer l, norms not applied.

    `last` is what the model hands out, after its final norm where it has one; `cut` says in words which part of the
    text was read.
    """

    token_ids: Ids
    entering: tuple[Array, ...]
    last: Array
    cut: str

    @property
    def count(self) -> int:
        return len(self.token_ids)


def hidden_states(model: Any, corpus: Corpus, *, tokens: int = TOKENS) -> HiddenStates:
    """Run a model of transformers, or of the laboratory, on the first tokens of a text; keep every layer's input."""
    ids = corpus.sequences[0][:tokens]
    states = run_states(model, ids)
    return HiddenStates(ids, states[:-1], states[-1], f"the first {len(ids)} tokens of {corpus.name}")


def run_states(model: Any, ids: Ids) -> tuple[Array, ...]:
    """The input of each layer and the model's output, for token numbers, in float64 arrays of shape (n, d)."""
    import torch

    if getattr(model.config, "is_encoder_decoder", False):
        raise BadValue(
            f"{type(model).__name__} has an encoder and a decoder; the residual stream of one stack is needed."
        )
    with torch.no_grad():
        tokens = torch.from_numpy(np.asarray(ids))[None].to(home(model))
        out = model(input_ids=tokens, output_hidden_states=True)
    found = tuple(state[0].cpu().double().numpy() for state in out.hidden_states)
    for number, state in enumerate(found):
        if not np.isfinite(state).all():
            raise BadValue(f"the hidden states at layer {number} hold NaN or infinity: the model cannot be measured.")
    return found


def self_layers(model: Model, hidden: HiddenStates) -> list[Layer]:
    """The model's layers in the order of the hidden states, after a check that they belong together."""
    layers = list(model.layers)
    if any(layer.spec.kind != "self" for layer in layers) or len({layer.spec.stack for layer in layers}) != 1:
        raise BadValue(f"{model.path.name} has more than one stack; the residual stream of a single one is needed.")
    if len(layers) != len(hidden.entering) or layers[0].spec.width != hidden.entering[0].shape[1]:
        raise BadValue(
            f"{model.path.name} has {len(layers)} attention layers of width {layers[0].spec.width}, but the hidden "
            f"states are {len(hidden.entering)} of width {hidden.entering[0].shape[1]}: not the same model."
        )
    return layers


def attention_branch(layer: Layer, x_ND: Array) -> Array:
    """What attention adds to the residual stream x (n, d) in this layer."""
    _, _, values_HMV = project(layer, x_ND)
    return output(layer, attention(layer, x_ND), values_HMV)
