from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeModel,
)

from .decoders import check_decoder, file, tiny, written

WINDOW = {"use_sliding_window": True, "sliding_window": 4}
LISTED = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e6}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

SETTINGS = [
    ("GQA", {"num_key_value_heads": 2}),
    ("window switched off", {"sliding_window": 4, "max_window_layers": 0}),
    ("upper layers slide", {**WINDOW, "max_window_layers": 1}),
    ("listed layers slide", {**WINDOW, "layer_types": LISTED, "num_hidden_layers": 3}),
    ("yarn", {"rope_parameters": YARN, "num_key_value_heads": 2}),
]


@pytest.mark.parametrize(("setting", "options"), SETTINGS)
def test_qwen2(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Qwen2Config(**tiny(num_key_value_heads=4) | options)
    check_decoder(saved, "qwen2", setting, Qwen2ForCausalLM(config))


@pytest.mark.parametrize(
    ("setting", "options"), [*SETTINGS, ("biases", {"attention_bias": True}), ("head_dim 16", {"head_dim": 16})]
)
def test_qwen3(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Qwen3Config(**tiny(num_key_value_heads=4, head_dim=8) | options)
    check_decoder(saved, "qwen3", setting, Qwen3ForCausalLM(config))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize(("setting", "switch"), [("window by number", True), ("window switched off", False)])
def test_an_old_configuration(saved: Path, tmp_path: Path, kind: str, setting: str, switch: bool) -> None:
    """As published: base at the top, windows by number of layers, no list of layers, a window even if unused."""
    old = file(
        model_type=kind,
        num_key_value_heads=2,
        head_dim=8,
        rope_theta=1e6,
        max_window_layers=1,
        use_sliding_window=switch,
        sliding_window=4,
    )
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, kind, f"old: {setting}", model, load=load)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("plain", {}),
        ("no biases", {"qkv_bias": False}),
        ("every other layer slides", {**WINDOW, "num_hidden_layers": 3, "max_window_layers": 3}),
        ("one layer slides", {**WINDOW, "num_hidden_layers": 3, "max_window_layers": 2}),
    ],
)
def test_qwen2_moe(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Qwen2MoeConfig(**tiny(num_key_value_heads=2, shared_expert_intermediate_size=16, **EXPERTS) | options)
    check_decoder(saved, "qwen2_moe", setting, Qwen2MoeModel(config))


def test_qwen2_moe_with_an_old_configuration(saved: Path, tmp_path: Path) -> None:
    old = file(
        model_type="qwen2_moe",
        num_key_value_heads=2,
        num_hidden_layers=3,
        max_window_layers=2,
        shared_expert_intermediate_size=16,
        **WINDOW,
        **EXPERTS,
    )
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, "qwen2_moe", "old: window by number", model, load=load)


@pytest.mark.parametrize(
    ("setting", "options"), [("plain", {}), ("all slide", WINDOW), ("head_dim 16", {"head_dim": 16})]
)
def test_qwen3_moe(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Qwen3MoeConfig(**tiny(num_key_value_heads=2, **EXPERTS, **options))
    check_decoder(saved, "qwen3_moe", setting, Qwen3MoeModel(config))
