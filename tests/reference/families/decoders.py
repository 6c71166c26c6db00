"""Helpers for decoders with rotary positions: attention and what it adds to the stream, in one comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import toposcope

from .harness import array, check_output, check_self_attention, watch_inputs

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
    left = watch_inputs([getattr(block, after) for block in blocks]) if after else watch_outputs(blocks)
    check_self_attention(saved, family, setting, model, blocks_of, **options)
    with options.get("load", toposcope.load)(saved) as ours:
        for layer, before, behind in zip(ours.layers, entering, left, strict=True):
            x, y = array(before[0][0]), array(behind[0][0])
            check_output(layer, x, y - x if after else y)


def watch_outputs(blocks: list[nn.Module]) -> list[list[torch.Tensor]]:
    """Record what the attention module of each block gives back."""
    seen: list[list[torch.Tensor]] = [[] for _ in blocks]
    for block, calls in zip(blocks, seen, strict=True):
        block.self_attn.register_forward_hook(
            lambda module, args, out, calls=calls: calls.append(out[0].detach())
        )
    return seen


def written(where: Path, settings: dict[str, Any]) -> tuple[nn.Module, Callable[[Path], toposcope.Model]]:
    """A model as transformers builds it from a hand-written config.json, and a reader that is given the same file."""
    text = json.dumps(settings)
    where.mkdir()
    (where / "config.json").write_text(text)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(where), attn_implementation="eager")

    def load(path: Path) -> toposcope.Model:
        (path / "config.json").write_text(text)
        return toposcope.load(path)

    return model, load
