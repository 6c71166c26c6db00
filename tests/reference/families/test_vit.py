from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from torch import nn
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    DeiTModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

import toposcope

from .encoders import TINY_IMAGE, check_added_parameter, image
from .harness import check_self_attention


def base(model: nn.Module) -> nn.Module:
    return getattr(model, model.base_model_prefix, model)


def check(saved: Path, family: str, setting: str, model: nn.Module, **options: Any) -> None:
    check_self_attention(
        saved,
        family,
        setting,
        model,
        lambda m: base(m).layers,
        outputs=lambda m: [layer.attention for layer in base(m).layers],
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
        ("bare", ViTModel, {}),
        ("with a head", ViTForImageClassification, {}),
        ("no biases", ViTModel, {"qkv_bias": False}),
        ("large norm eps", ViTModel, {"layer_norm_eps": 0.1}),
    ],
)
def test_vit(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check(saved, "vit", setting, kind(ViTConfig(**{**TINY_IMAGE, **options})))
    with toposcope.load(saved) as ours:
        assert ours.spec.context == 1 + 9  # the class token and 3 x 3 patches


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("bare", DeiTModel, {}),
        ("with a head", DeiTForImageClassification, {}),
        ("no biases", DeiTModel, {"qkv_bias": False}),
    ],
)
def test_deit(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check(saved, "deit", setting, kind(DeiTConfig(**{**TINY_IMAGE, **options})))
    with toposcope.load(saved) as ours:
        assert ours.spec.context == 2 + 9


@pytest.mark.parametrize("kind", [ViTModel, ViTForImageClassification])
def test_newer_names(saved: Path, kind: Any) -> None:
    """The names modules have in memory differ from those in files; a plain state dict keeps the former."""
    model = kind(ViTConfig(**TINY_IMAGE))

    def load(path: Path) -> toposcope.Model:
        save_file(
            {name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path / "model.safetensors"
        )
        return toposcope.load(path)

    check(saved, "vit", "newer names", model, load=load)
