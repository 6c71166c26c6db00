"""Helpers for decoders with rotary positions: attention and what it adds to the stream, in one comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import toposcope

from .harness import array, check_output, check_self_attention, watch_inputs, watch_outputs

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}


def tiny(**options: Any) -> dict[str, Any]:
    """The settings of a tiny model; a window of 4 is far shorter than the 12 tokens of the texts."""
    return {**TINY, **options}


def file(**options: Any) -> dict[str, Any]:
    """The same as they stand in a config.json."""
    return {key: value for key, value in tiny(**options).items() if key != "attn_implementation"}


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The layers of a decoder, whether it has a head on top or not."""
    inner = getattr(model, "model", model)
    return getattr(inner, "language_model", inner).layers


def check_decoder(
    saved: Path,
    family: str,
    setting: str,
    model: nn.Module,
    *,
    after: str | None = "post_attention_layernorm",
    **options: Any,
) -> None:
    """Compare each layer's attention, and what it adds to the stream, with the model's own.

    What it adds is read off the stream itself: the difference between what enters the layer and what enters the
    submodule `after`, the next one that reads the stream. So it holds every norm and factor on the way. Where
    attention and feed-forward stand side by side no such place exists; with `after` None the attention module's own
    output is taken.
    """
    blocks = list(blocks_of(model))
    entering = watch_inputs(blocks)
    if after:
        left = watch_inputs([getattr(block, after) for block in blocks])
    else:
        left = watch_outputs([block.self_attn for block in blocks])
    check_self_attention(saved, family, setting, model, blocks_of, **options)
    with options.get("load", toposcope.load)(saved) as ours:
        for layer, before, behind in zip(ours.layers, entering, left, strict=True):
            x, y = array(before[0][0]), array(behind[0][0])
            check_output(layer, x, y - x if after else y)


def written(
    where: Path, settings: dict[str, Any], ours: dict[str, Any] | None = None
) -> tuple[nn.Module, Callable[[Path], toposcope.Model]]:
    """A model as transformers builds it from a hand-written config.json, and a reader that is given the same file.

    `ours` is what the reader is given instead, where transformers can no longer read it.
    """
    where.mkdir()
    (where / "config.json").write_text(json.dumps(settings))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(where), attn_implementation="eager")

    def load(path: Path) -> toposcope.Model:
        (path / "config.json").write_text(json.dumps(settings if ours is None else ours))
        return toposcope.load(path)

    return model, load
