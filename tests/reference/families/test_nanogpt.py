"""nanoGPT is not a package: its checkpoint is rebuilt here, with a model of our own that has its tensor names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2Model

import toposcope
from toposcope.checkpoints.attention import attention
from toposcope.core.errors import BadConfig, MissingTensor

from .harness import array, check_output, compare, far_from_uniform, randomise, watch_inputs, watch_outputs

WIDTH, HEADS, LAYERS, LENGTH = 32, 4, 3, 24
ARGS = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "block_size": LENGTH, "vocab_size": 64, "dropout": 0.0}


class Attention(nn.Module):
    def __init__(self, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.register_buffer("bias", torch.ones(LENGTH, LENGTH).tril().view(1, 1, LENGTH, LENGTH))
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        q, k, v = (part.view(1, n, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, dim=2))
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        probabilities = logits.masked_fill(self.bias[:, :, :n, :n] == 0, -math.inf).softmax(-1)
        self.seen.append(probabilities.detach())
        return self.c_proj((probabilities @ v).transpose(1, 2).reshape(1, n, WIDTH))


class Norm(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, (WIDTH,), self.weight, self.bias, 1e-5)


class Block(nn.Module):
    def __init__(self, heads: int, bias: bool) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = Norm(bias), Attention(heads, bias), Norm(bias)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(WIDTH, 2 * WIDTH, bias=bias), "c_proj": nn.Linear(2 * WIDTH, WIDTH, bias=bias)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x))))


class Tiny(nn.Module):
    def __init__(self, heads: int = HEADS, bias: bool = True) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(64, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "h": nn.ModuleList(Block(heads, bias) for _ in range(LAYERS)),
                "ln_f": Norm(bias),
            }
        )
        self.lm_head = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"](torch.arange(tokens.shape[1]))
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))


def _check(setting: str, model: Tiny, file: Path, **options: Any) -> None:
    blocks = list(model.transformer["h"])
    streams, added = watch_inputs(blocks), watch_outputs([block.attn for block in blocks])
    with torch.no_grad():
        model(torch.randint(0, 64, (1, 12), generator=torch.Generator().manual_seed(1)))
    with toposcope.load(file, **options) as ours:
        assert ours.family == "nanogpt"
        assert not ours.skipped
        assert len(ours.layers) == LAYERS
        for layer, block, stream, what in zip(ours.layers, blocks, streams, added, strict=True):
            theirs = array(block.attn.seen[0][0])
            assert far_from_uniform(theirs)
            x = array(stream[0][0])
            compare("nanogpt", setting, attention(layer, x), theirs)
            check_output(layer, x, array(what[0][0]))
        table = ours.layers[0].encoding.input
        assert table is not None
        wpe = model.transformer["wpe"].weight.detach().numpy()
        np.testing.assert_allclose(table.vectors(np.arange(LENGTH)), wpe, atol=1e-7)


def _made(**options: Any) -> Tiny:
    model = Tiny(**options).eval()
    randomise(model, size=2.0)
    return model


@pytest.mark.parametrize(
    ("setting", "options", "prefix"),
    [
        ("plain", {}, ""),
        ("no biases", {"bias": False}, ""),
        ("two heads", {"heads": 2}, ""),
        ("compiled", {}, "_orig_mod."),
    ],
)
def test_checkpoint(tmp_path: Path, setting: str, options: dict[str, Any], prefix: str) -> None:
    """What nanoGPT's training script saves: the state dict beside the arguments of the model."""
    model, file = _made(**options), tmp_path / "ckpt.pt"
    args = {**ARGS, "n_head": options.get("heads", HEADS), "bias": options.get("bias", True)}
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save({"model": state, "model_args": args, "iter_num": 7, "config": {"dataset": "x"}}, file)
    _check(setting, model, file)
    with toposcope.load(file) as ours:
        assert ours.spec.context == LENGTH
        assert ours.token_embedding() is not None


def test_bare_state_dict(tmp_path: Path) -> None:
    """Without the arguments the head count is not in the file: say so, and take it from the user."""
    model, file = _made(), tmp_path / "weights.pt"
    torch.save(model.state_dict(), file)
    with pytest.raises(BadConfig, match="--num-heads"):
        toposcope.load(file)
    _check("bare state dict", model, file, num_heads=HEADS)


def test_heads_that_do_not_divide_the_width(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    torch.save(Tiny().state_dict(), file)
    with pytest.raises(BadConfig, match="5 heads"):
        toposcope.load(file, num_heads=5)


def test_the_user_overrules_the_file(tmp_path: Path) -> None:
    model, file = _made(heads=2), tmp_path / "ckpt.pt"
    torch.save({"model": model.state_dict(), "model_args": ARGS}, file)
    _check("heads given by the user", model, file, num_heads=2)


def test_gpt2_state_dict_is_told_apart(tmp_path: Path) -> None:
    """The same names, but maps stored as (in, out): GPT-2's own weights without their configuration."""
    model = GPT2Model(GPT2Config(vocab_size=64, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_positions=LENGTH))
    file = tmp_path / "pytorch_model.bin"
    torch.save(model.state_dict(), file)
    with toposcope.load(file, num_heads=HEADS) as ours:
        assert ours.family == "gpt2"
        fused = model.h[1].attn.c_attn.weight.detach().numpy()
        head = ours.layers[1].heads[2]
        wide = WIDTH // HEADS
        np.testing.assert_array_equal(head.q, fused[:, 2 * wide : 3 * wide].T)
        np.testing.assert_array_equal(head.k, fused[:, WIDTH + 2 * wide : WIDTH + 3 * wide].T)


def test_senseless_shape(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    state = Tiny().state_dict()
    state["transformer.h.0.attn.c_attn.weight"] = torch.zeros(10, WIDTH)
    torch.save(state, file)
    with pytest.raises(MissingTensor, match="c_attn"):
        toposcope.load(file, num_heads=HEADS)


def test_a_sinusoid_in_the_place_of_the_learned_table(tmp_path: Path) -> None:
    model = Tiny()
    angle = torch.arange(LENGTH)[:, None] * 10000.0 ** (-torch.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    with torch.no_grad():
        model.transformer["wpe"].weight.copy_(2 * torch.cat([angle.sin(), angle.cos()], dim=1))
    torch.save({"model": model.state_dict(), "model_args": ARGS}, tmp_path / "ckpt.pt")
    with toposcope.load(tmp_path / "ckpt.pt") as ours:
        encoding = ours.layers[0].encoding
        said = {name: encoding.parameters[name] for name in ("layout", "base", "offset")}
        assert said == {"layout": "half", "base": 10000.0, "offset": 0}
        assert encoding.parameters["scale"] == pytest.approx(2.0, rel=1e-5)


def test_a_rotation_beside_the_table_is_named(tmp_path: Path) -> None:
    state = {**Tiny().state_dict(), "transformer.h.0.attn.rotary.inv_freq": torch.ones(4)}
    torch.save({"model": state, "model_args": ARGS}, tmp_path / "ckpt.pt")
    with toposcope.load(tmp_path / "ckpt.pt") as ours:
        assert [entry.tensors for entry in ours.skipped] == [("transformer.h.0.attn.rotary.inv_freq",)]
        assert ours.layers[0].encoding.name == "learned"
