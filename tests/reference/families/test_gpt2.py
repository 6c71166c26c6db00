from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
)

import toposcope
from toposcope.core.errors import BadConfig

from .harness import check_self_attention, rewrite_config

TINY = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 32,
    "attn_implementation": "eager",
}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("plain", {}),
        ("one head", {"n_head": 1}),
        ("logits not scaled", {"scale_attn_weights": False}),
        ("scaled by depth", {"scale_attn_by_inverse_layer_idx": True}),
        ("reordered", {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}),
        ("eps 1e-2", {"layer_norm_epsilon": 1e-2}),
    ],
)
def test_gpt2(saved: Path, setting: str, options: dict[str, Any]) -> None:
    model = GPT2LMHeadModel(GPT2Config(**{**TINY, **options}))
    check_self_attention(
        saved,
        "gpt2",
        setting,
        model,
        lambda m: m.transformer.h,
        position_module=lambda m: m.transformer.wpe,
        outputs=lambda m: [block.attn for block in m.transformer.h],
        size=2.0 if options.get("scale_attn_weights", True) else 1.0,
    )


def test_original_file(saved: Path) -> None:
    """OpenAI's own: no prefix before the names, masks stored among the weights, a configuration of few keys."""

    def load(directory: Path) -> toposcope.Model:
        file = directory / "model.safetensors"
        tensors = load_file(file)
        for i in range(3):
            assert f"h.{i}.attn.c_attn.weight" in tensors
            tensors[f"h.{i}.attn.bias"] = torch.ones(32, 32).tril().view(1, 1, 32, 32)
            tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        save_file(tensors, file, metadata={"format": "pt"})
        few = {"model_type": "gpt2", "n_ctx": 32, "n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 32}
        (directory / "config.json").write_text(json.dumps(few))
        model = toposcope.load(directory)
        assert not model.skipped
        assert model.spec.context == 32
        assert model.spec.embedding == "wte.weight"
        return model

    check_self_attention(
        saved,
        "gpt2",
        "original file",
        GPT2Model(GPT2Config(**TINY)),
        lambda m: m.h,
        position_module=lambda m: m.wpe,
        load=load,
        size=2.0,
    )


def test_sizes_left_to_the_defaults(saved: Path) -> None:
    """A configuration that names its type alone means the sizes of the smallest GPT-2."""
    GPT2Model(GPT2Config(vocab_size=8, n_positions=4, n_layer=12)).save_pretrained(saved)
    (saved / "config.json").write_text('{"model_type": "gpt2"}')
    with toposcope.load(saved) as model:
        assert len(model.layers) == 12
        assert model.layers[11].weights.q_HRD.shape == (12, 64, 768)


def test_cross_attention_is_not_passed_over_in_silence(saved: Path) -> None:
    GPT2Model(GPT2Config(**TINY, add_cross_attention=True)).save_pretrained(saved)
    with toposcope.load(saved) as model:
        assert any("crossattention" in skipped.what for skipped in model.skipped)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("multi-query", {}),
        ("one key per head", {"multi_query": False}),
        ("logits not scaled", {"scale_attn_weights": False}),
    ],
)
def test_gpt_bigcode(saved: Path, setting: str, options: dict[str, Any]) -> None:
    model = GPTBigCodeForCausalLM(GPTBigCodeConfig(**{**TINY, **options}))
    check_self_attention(
        saved,
        "gpt_bigcode",
        setting,
        model,
        lambda m: m.transformer.h,
        position_module=lambda m: m.transformer.wpe,
        outputs=lambda m: [block.attn for block in m.transformer.h],
    )


NEO = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_layers": 3,
    "num_heads": 4,
    "max_position_embeddings": 32,
    "window_size": 4,
    "attn_implementation": "eager",
}


@pytest.mark.parametrize(
    ("setting", "kinds", "reaches"),
    [
        ("all global", [[["global"], 3]], [None, None, None]),
        ("global and local", [[["global", "local"], 1], [["local"], 1]], [None, 3, 3]),
    ],
)
def test_gpt_neo(saved: Path, setting: str, kinds: list[Any], reaches: list[int | None]) -> None:
    model = GPTNeoForCausalLM(GPTNeoConfig(**NEO, attention_types=kinds))
    check_self_attention(
        saved,
        "gpt_neo",
        setting,
        model,
        lambda m: m.transformer.h,
        position_module=lambda m: m.transformer.wpe,
        outputs=lambda m: [block.attn for block in m.transformer.h],
        size=0.7,
    )
    with toposcope.load(saved) as ours:
        assert [layer.spec.reach for layer in ours.layers] == reaches


@pytest.mark.parametrize("kinds", [[[["global"], 2]], [[["sparse"], 3]], 5, [["global", 3, 4]], [[5, 3]]])
def test_gpt_neo_with_senseless_layers(saved: Path, kinds: Any) -> None:
    GPTNeoForCausalLM(GPTNeoConfig(**NEO, attention_types=[[["global"], 3]])).save_pretrained(saved)
    rewrite_config(saved, attention_types=kinds)
    with pytest.raises(BadConfig, match="attention_types"):
        toposcope.load(saved)
