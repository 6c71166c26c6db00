from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
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
)

import toposcope
from toposcope.core.errors import BadConfig

from .decoders import blocks_of, check_decoder, file, tiny, written
from .harness import check_self_attention

SANDWICH = "pre_feedforward_layernorm"
LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("plain", {}),
        ("multi-query, head_dim 16", {"num_key_value_heads": 1, "head_dim": 16}),
        ("biases", {"attention_bias": True}),
    ],
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
    old = file(model_type="gemma2", num_key_value_heads=2, head_dim=8, sliding_window=4, rope_theta=300.0)
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
def test_gemma3_with_an_old_configuration(saved: Path, tmp_path: Path, setting: str, options: dict[str, Any]) -> None:
    old = file(**{**TINY_GEMMA3, "num_hidden_layers": 7}, model_type="gemma3_text", **options)
    del old["layer_types"]
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, "gemma3", setting, model, after=SANDWICH, load=load)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("query_pre_attn_scalar", 0),
        ("attn_logit_softcapping", 0.0),
        ("layer_types", ["full_attention", "chunked_attention"]),
        ("layer_types", ["full_attention"]),
    ],
)
def test_gemma2_with_a_damaged_configuration(saved: Path, key: str, value: Any) -> None:
    settings = file(num_key_value_heads=2, head_dim=8, sliding_window=4)
    Gemma2ForCausalLM(Gemma2Config(**settings)).save_pretrained(saved)
    (saved / "config.json").write_text(json.dumps({**settings, "model_type": "gemma2", key: value}))
    with pytest.raises(BadConfig, match=key):
        toposcope.load(saved)


VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def with_new_names(path: Path) -> toposcope.Model:
    """Read the checkpoint with its tensors named as in memory; transformers itself still writes older names."""
    tensors = load_file(path / "model.safetensors")
    renamed = {name.replace("language_model.model.", "model.language_model."): t for name, t in tensors.items()}
    renamed = {name.replace("vision_tower.", "model.vision_tower."): t for name, t in renamed.items()}
    assert "model.language_model.embed_tokens.weight" in renamed
    assert "model.language_model.embed_tokens.weight" not in tensors
    save_file(renamed, path / "model.safetensors", metadata={"format": "pt"})
    return toposcope.load(path)


@pytest.mark.parametrize(("setting", "load"), [("old names", toposcope.load), ("new names", with_new_names)])
def test_gemma3_with_vision(saved: Path, setting: str, load: Callable[[Path], toposcope.Model]) -> None:
    """Of a multimodal checkpoint the text part is read, and the vision tower is named as skipped."""
    text = Gemma3TextConfig(**tiny(**TINY_GEMMA3)).to_dict()
    config = Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4, attn_implementation="eager")
    check_self_attention(
        saved,
        "gemma3",
        f"with vision, {setting}",
        Gemma3ForConditionalGeneration(config),
        blocks_of,
        inputs={"input_ids": torch.arange(3, 15)[None]},
        load=load,
    )
    with toposcope.load(saved) as ours:
        assert ours.spec.embedding in ours.source.names()
        (skipped,) = ours.skipped
        assert "vision" in skipped.what
        assert any(name.endswith("self_attn.q_proj.weight") for name in skipped.tensors)


def test_gemma3_with_vision_and_an_old_configuration(saved: Path, tmp_path: Path) -> None:
    """As published: the text part says only what differs from the smallest model, not even its number of heads."""
    text = {
        "model_type": "gemma3_text",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 7,
        "rope_scaling": LINEAR,
        "sliding_window": 4,
    }
    old = {"model_type": "gemma3", "text_config": text, "vision_config": VISION, "mm_tokens_per_image": 4}
    model, load = written(tmp_path / "old", old)
    ids = torch.arange(3, 15)[None]
    setting = "old: with vision, heads left out"
    check_decoder(saved, "gemma3", setting, model, after=SANDWICH, inputs={"input_ids": ids}, load=load, size=2.0)
    with load(saved) as ours:
        assert (ours.layers[0].spec.heads, ours.layers[0].spec.kv_heads, ours.layers[0].spec.head_dim) == (8, 4, 256)
