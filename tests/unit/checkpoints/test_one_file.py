"""A new architecture is one file: a table in `checkpoints/families/` is found, chosen by model_type, and read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import toposcope
from toposcope.checkpoints import families
from toposcope.checkpoints.attention import logits, project
from toposcope.core.errors import UnknownFamily

WIDTH, HEADS, LAYERS = 12, 3, 2
TOY = '''"""Toy: fused projections head by head, LayerNorm after the addition, half of each head rotating."""

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

TOY = Table(
    family="toy",
    grouped=False,
    layer="blocks.{}.",
    linear=("mix", "out"),
    layout="per_head",
    norm="layer",
    input_norm=None,
    residual_norm="norm",
    rope={"default_partial": 0.5},
    embedding="tokens",
)

FAMILIES = (Family("toy", ("toy",), TOY.describe, "Toy", "blocks.0.mix.weight"),)
'''


def forget() -> None:
    for cached in (families._built_in, families.families):
        cached.cache_clear()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "families").mkdir()
    (tmp_path / "families/toy.py").write_text(TOY)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path / "families")])
    forget()
    yield
    sys.modules.pop("toposcope.checkpoints.families.toy", None)
    forget()


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    draw = np.random.default_rng(0).standard_normal
    shapes = {"mix.weight": (3 * WIDTH, WIDTH), "out.weight": (WIDTH, WIDTH), "norm.weight": (WIDTH,)}
    tensors = {f"m.blocks.{i}.{name}": draw(shape) for i in range(LAYERS) for name, shape in shapes.items()}
    model = tmp_path / "model"
    model.mkdir()
    save_file({name: tensor.astype(np.float32) for name, tensor in tensors.items()}, model / "model.safetensors")
    config = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS}
    (model / "config.json").write_text(json.dumps({"model_type": "toy", **config}))
    return model, tensors


def test_one_file_is_all_it_takes(toy: None, saved: tuple[Path, dict[str, np.ndarray]]) -> None:
    model, tensors = saved
    x_ND = np.random.default_rng(1).standard_normal((5, WIDTH))
    mix_HCRD = tensors["m.blocks.1.mix.weight"].reshape(HEADS, 3, WIDTH // HEADS, WIDTH)
    with toposcope.load(model) as opened:
        layer = opened.layers[1]
        assert (opened.family, len(opened.layers), layer.spec.placement) == ("toy", LAYERS, "post")
        q_HNR, k_HNR, _ = project(layer, x_ND)
        found_HNN = logits(layer, q_HNR, k_HNR)
    for head in range(HEADS):
        query, key = (x_ND @ mix_HCRD[head, part].T for part in (0, 1))
        angle = np.arange(5)  # one pair, which turns by one radian per token
        turned = [
            np.column_stack([r[:, 0] * np.cos(angle) - r[:, 1] * np.sin(angle),
                             r[:, 0] * np.sin(angle) + r[:, 1] * np.cos(angle), r[:, 2:]])
            for r in (query, key)
        ]  # fmt: skip
        np.testing.assert_allclose(found_HNN[head], turned[0] @ turned[1].T / 2, rtol=1e-5, atol=1e-5)


def test_without_the_file_it_is_unknown(saved: tuple[Path, dict[str, np.ndarray]]) -> None:
    with pytest.raises(UnknownFamily):
        toposcope.load(saved[0])
