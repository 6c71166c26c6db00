from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import GPTJConfig, GPTJForCausalLM, GPTJModel

import toposcope
from toposcope.core.errors import BadConfig, BadEncoding

from .harness import check_self_attention, rewrite_config

TINY = {
    "vocab_size": 64,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "rotary_dim": 8,
    "attn_implementation": "eager",
}


def _attention(model: nn.Module) -> list[nn.Module]:
    return [block.attn for block in model.h]


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("half of the head", {}),
        ("4 of 16 channels", {"rotary_dim": 4}),
        ("one head", {"n_head": 1, "rotary_dim": 16}),
        ("eps 1e-2", {"layer_norm_epsilon": 1e-2}),
    ],
)
def test_gptj(saved: Path, setting: str, options: dict[str, Any]) -> None:
    model = GPTJForCausalLM(GPTJConfig(**{**TINY, **options}))
    check_self_attention(
        saved,
        "gptj",
        setting,
        model,
        lambda m: m.transformer.h,
        outputs=lambda m: _attention(m.transformer),
    )


@pytest.mark.parametrize(
    ("setting", "options", "drop", "changes"),
    [
        ("rotary_dim null", {"rotary_dim": 16}, (), {"rotary_dim": None}),
        ("rotary_dim missing", {"n_embd": 160, "n_head": 2, "rotary_dim": 64}, ("rotary_dim",), {}),
    ],
)
def test_rotary_dim_not_given(
    saved: Path, setting: str, options: dict[str, Any], drop: tuple[str, ...], changes: dict[str, Any]
) -> None:
    """transformers refuses to build the first; older versions meant the whole head by it."""

    def load(directory: Path) -> toposcope.Model:
        rewrite_config(directory, drop=drop, **changes)
        return toposcope.load(directory)

    model = GPTJModel(GPTJConfig(**{**TINY, **options}))
    check_self_attention(saved, "gptj", setting, model, lambda m: m.h, load=load, outputs=_attention)


def test_more_rotary_channels_than_the_head_has(saved: Path) -> None:
    GPTJModel(GPTJConfig(**TINY)).save_pretrained(saved)
    rewrite_config(saved, rotary_dim=32)
    with pytest.raises((BadConfig, BadEncoding), match="32"):
        toposcope.load(saved)
