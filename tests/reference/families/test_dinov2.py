from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import nn
from transformers import Dinov2Config, Dinov2ForImageClassification, Dinov2Model

import toposcope

from .encoders import TINY_IMAGE, check_added_parameter, image
from .harness import check_self_attention

SMALL: dict[str, Any] = {key: value for key, value in TINY_IMAGE.items() if key != "intermediate_size"}


def base(model: nn.Module) -> nn.Module:
    return getattr(model, "dinov2", model)


def check(saved: Path, setting: str, model: nn.Module, **options: Any) -> None:
    check_self_attention(
        saved,
        "dinov2",
        setting,
        model,
        lambda m: base(m).encoder.layer,
        outputs=lambda m: [layer.layer_scale1 for layer in base(m).encoder.layer],
        inputs=image(),
        stack="vision",
        **options,
    )
    embeddings = base(model).embeddings
    with toposcope.load(saved) as ours:
        check_added_parameter(embeddings, embeddings.position_embeddings, image(), ours.layers[0])
        assert not ours.skipped


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("bare", Dinov2Model, {}),
        ("with a head", Dinov2ForImageClassification, {}),
        ("no biases", Dinov2Model, {"qkv_bias": False}),
        ("small layer scale", Dinov2Model, {"layerscale_value": 0.1}),
        ("SwiGLU", Dinov2Model, {"use_swiglu_ffn": True}),
    ],
)
def test_dinov2(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check(saved, setting, kind(Dinov2Config(**{**SMALL, **options})))


def test_newer_names(saved: Path) -> None:
    model = Dinov2Model(Dinov2Config(**SMALL))

    def load(path: Path) -> toposcope.Model:
        save_file(
            {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path / "model.safetensors"
        )
        return toposcope.load(path)

    check(saved, "newer names", model, load=load)
