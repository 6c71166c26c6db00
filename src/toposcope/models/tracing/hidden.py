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
from toposcope.core.unknown import unknown
from toposcope.models.load import Reference

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """One text in one model. `entering[l]` (n, d) is the residual stream at the input of layer l, norms not applied.

    `last` is what the model hands out, after its final norm where it has one; `cut` says in words which part of the
    text was read.
    """

    text: str
    token_ids: NDArray[np.int64]
    tokens: tuple[str, ...]
    entering: tuple[Array, ...]
    last: Array
    cut: str

    @property
    def count(self) -> int:
        return len(self.token_ids)


def token_ids(reference: Reference, content: str, tokens: int, *, name: str = "the text") -> NDArray[np.int64]:
    """The first token numbers of a text, special tokens as the tokenizer adds them, at most `tokens` of them."""
    if tokens < 1:
        raise BadValue(f"a text needs at least one token, got {tokens}.")
    # 40 characters hold a token of any vocabulary in practice; a whole book need not be tokenised for its first page.
    given = reference.tokenizer(content[: 40 * tokens + 200], truncation=True, max_length=tokens)["input_ids"]
    if not given:
        raise BadValue(f"{name} holds no token. Give a text with words in it.")
    return np.array(given, dtype=np.int64)


def hidden_states(
    reference: Reference, content: str, *, tokens: int = 64, name: str = "the text", begin: int = 0
) -> HiddenStates:
    """Run the model on the first `tokens` tokens of a text, from character `begin` on, and keep every layer's input.

    More tokens than the model's context are cut to it, and `cut` says so. Special tokens count among them.
    """
    limit = reference.context
    wanted = tokens if limit is None else min(tokens, limit)
    ids = token_ids(reference, content[begin:], wanted, name=name)
    cut = f"the first {len(ids)} tokens of {name}" + (f" from character {begin} on" if begin else "")
    if wanted < tokens and len(ids) == wanted:
        cut += f" (of {tokens} asked for: the model's context is {limit})"
    elif len(ids) < wanted:
        cut += " (which has no more)"
    cut += str(unknown(reference.tokenizer, [ids], content[begin : begin + 40 * wanted + 200], name))
    states = run_states(reference.model, ids)
    words = tuple(reference.tokenizer.convert_ids_to_tokens(ids.tolist()))
    return HiddenStates(name, ids, words, states[:-1], states[-1], cut)


def run_states(model: Any, ids: NDArray[np.int64]) -> tuple[Array, ...]:
    """The input of each layer and the model's output, for token numbers, in float64 arrays of shape (n, d)."""
    import torch

    if getattr(model.config, "is_encoder_decoder", False):
        raise BadValue(
            f"{type(model).__name__} has an encoder and a decoder; the residual stream of one stack is needed."
        )
    with torch.no_grad():
        out = model(input_ids=torch.from_numpy(np.asarray(ids))[None], output_hidden_states=True)
    found = tuple(state[0].to(torch.float64).numpy() for state in out.hidden_states)
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
