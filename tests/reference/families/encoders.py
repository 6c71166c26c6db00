"""Helpers for encoders: norms after the addition, images as input, and files under older names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import toposcope
from toposcope.checkpoints.attention import attention, output, project

from .harness import array, check_self_attention, watch_inputs

Modules = Callable[[nn.Module], Sequence[nn.Module]]

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}

TINY_IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 12,
    "patch_size": 4,
    "attn_implementation": "eager",
}


def image(size: int = 12) -> dict[str, torch.Tensor]:
    """One random picture."""
    return {"pixel_values": torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(2))}


def check_post_norm(
    saved: Path,
    family: str,
    setting: str,
    model: nn.Module,
    layers: Modules,
    *,
    outputs: Modules,
    after: Modules,
    **options: Any,
) -> None:
    """The whole comparison, and that what enters `after` is residual_norm(x + what attention adds)."""
    entering, behind = watch_inputs(list(layers(model))), watch_inputs(list(after(model)))
    check_self_attention(saved, family, setting, model, layers, outputs=outputs, **options)
    with toposcope.load(saved) as ours:
        for layer, before, left in zip(ours.layers, entering, behind, strict=True):
            norm = layer.weights.residual_norm
            assert layer.spec.placement == "post"
            assert norm is not None
            x = array(before[0][0])
            _, _, values = project(layer, x)
            mine = norm(x + output(layer, attention(layer, x), values))
            np.testing.assert_allclose(mine, array(left[0][0]), atol=2e-5)


def check_added_parameter(
    embeddings: nn.Module, parameter: nn.Parameter, inputs: Mapping[str, torch.Tensor], layer: toposcope.Layer
) -> None:
    """What the embeddings add for position, seen by setting their parameter to zero, is the layer's input table."""
    with torch.no_grad():
        whole = embeddings(*inputs.values())
        kept = parameter.clone()
        parameter.zero_()
        bare = embeddings(*inputs.values())
        parameter.copy_(kept)
    theirs = array(whole - bare)[0]
    table = layer.encoding.input
    assert table is not None
    assert table.length == len(theirs)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(table.vectors(np.arange(len(theirs))), theirs, atol=2e-6)


def renaming(rename: Callable[[str], str]) -> Callable[[Path], toposcope.Model]:
    """A reader that first gives every tensor of the saved file another name."""

    def load(path: Path) -> toposcope.Model:
        file = path / "model.safetensors"
        save_file({rename(name): tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
        return toposcope.load(path)

    return load


def reconfigured(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], toposcope.Model]:
    """A reader that first rewrites the saved config.json."""

    def load(path: Path) -> toposcope.Model:
        file = path / "config.json"
        file.write_text(json.dumps(change(json.loads(file.read_text()))))
        return toposcope.load(path)

    return load
