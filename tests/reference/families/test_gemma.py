from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Gemma3TextModel,
    GemmaConfig,
    GemmaForCausalLM,
    SiglipVisionConfig,
)

import toposcope

from .decoders import check_decoder, tiny, written

SANDWICH = "pre_feedforward_layernorm"
LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("setting", "options"),
    [("plain", {}), ("multi-query, head_dim 16", {"num_key_value_heads": 1, "head_dim": 16}), ("biases", {"attention_bias": True})],
)
def test_gemma(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = GemmaConfig(**tiny(num_key_value_heads=4, head_dim=8) | options)
    check_decoder(saved, "gemma", setting, GemmaForCausalLM(config))


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("alternating windows", {}),
        ("scale", {"query_pre_attn_scalar": 3}),
        ("soft cap 1", {"attn_logit_softcapping": 1.0}),
        ("no soft cap", {"attn_logit_softcapping": None}),
        ("listed layers slide", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("head_dim 16", {"head_dim": 16}),
    ],
)
def test_gemma2(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Gemma2Config(
        **tiny(num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=4) | options
    )
    check_decoder(saved, "gemma2", setting, Gemma2ForCausalLM(config), after=SANDWICH)


def test_gemma2_with_an_old_configuration(saved: Path, tmp_path: Path) -> None:
    """As published: no list of layers, the soft cap left out."""
    old = tiny(model_type="gemma2", num_key_value_heads=2, head_dim=8, sliding_window=4, rope_theta=300.0)
    del old["attn_implementation"]
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, "gemma2", "old: soft cap left out", model, after=SANDWICH, load=load, size=3.0)


TINY_GEMMA3 = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("two bases", {}),
        ("scale", {"query_pre_attn_scalar": 3}),
        (
            "linear on full layers",
            {
                "rope_parameters": {
                    "full_attention": {**LINEAR, "rope_theta": 1e3},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                }
            },
        ),
        ("biases, head_dim 16", {"attention_bias": True, "head_dim": 16}),
    ],
)
def test_gemma3(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Gemma3TextConfig(**tiny(**TINY_GEMMA3) | options)
    check_decoder(saved, "gemma3", setting, Gemma3ForCausalLM(config), after=SANDWICH)


@pytest.mark.parametrize("window", [4, 5])
def test_gemma3_that_looks_both_ways(saved: Path, window: int) -> None:
    """The embedding model: no causal mask, and half the window to each side."""
    config = Gemma3TextConfig(**tiny(**TINY_GEMMA3) | {"sliding_window": window, "use_bidirectional_attention": True})
    check_decoder(saved, "gemma3", f"both ways, window {window}", Gemma3TextModel(config), after=SANDWICH)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("old: bases left out", {}),
        ("old: two bases", {"rope_theta": 1e3, "rope_local_base_freq": 50.0}),
        (
            "old: linear",
            {"rope_theta": 1e3, "rope_local_base_freq": 50.0, "rope_scaling": LINEAR, "sliding_window_pattern": 2},
        ),
        ("old: linear, bases left out", {"rope_scaling": LINEAR, "sliding_window_pattern": 2}),
    ],
)
def test_gemma3_with_an_old_configuration(
    saved: Path, tmp_path: Path, setting: str, options: dict[str, Any]
) -> None:
    old = tiny(**{**TINY_GEMMA3, "num_hidden_layers": 7}, model_type="gemma3_text", **options)
    del old["attn_implementation"], old["layer_types"]
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, "gemma3", setting, model, after=SANDWICH, load=load)


def test_gemma3_with_vision(saved: Path) -> None:
    """Of a multimodal checkpoint the text part is read, and the vision tower is named as skipped."""
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    text = Gemma3TextConfig(**tiny(**TINY_GEMMA3))
    config = Gemma3Config(
        text_config=text.to_dict(), vision_config=vision.to_dict(), mm_tokens_per_image=4, attn_implementation="eager"
    )
    model = Gemma3ForConditionalGeneration(config)
    ids = torch.arange(3, 15)[None]
    check_decoder(saved, "gemma3", "with vision", model, after=SANDWICH, inputs={"input_ids": ids})
    with toposcope.load(saved) as ours:
        assert ours.spec.embedding in ours.source.names()
        (skipped,) = ours.skipped
        assert "vision" in skipped.what
        assert any(name.endswith("self_attn.q_proj.weight") for name in skipped.tensors)
