from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MinistralConfig,
    MinistralModel,
    MistralConfig,
    MistralModel,
    MixtralConfig,
    MixtralModel,
)

from .decoders import check_decoder, tiny, written

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 1e4,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("plain", {}),
        ("GQA", {"num_key_value_heads": 2}),
        ("multi-query", {"num_key_value_heads": 1}),
        ("head_dim 16", {"head_dim": 16}),
        ("biases", {"attention_bias": True}),
        ("eps 0.1", {"rms_norm_eps": 0.1}),
        ("linear", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}),
        ("yarn", {"rope_parameters": YARN}),
        ("llama3", {"rope_parameters": LLAMA3}),
        ("a fraction that is not read", {"partial_rotary_factor": 0.5}),
        (
            "a fraction that is not read, inside",
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        ),
        ("dynamic, within", {"rope_parameters": DYNAMIC}),
        ("dynamic, beyond", {"rope_parameters": DYNAMIC, "max_position_embeddings": 8}),
    ],
)
def test_llama(saved: Path, setting: str, options: dict[str, Any]) -> None:
    check_decoder(saved, "llama", setting, LlamaForCausalLM(LlamaConfig(**tiny(**options))))


def test_llama_without_its_head(saved: Path) -> None:
    model = LlamaModel(LlamaConfig(**tiny(num_key_value_heads=2, tie_word_embeddings=True)))
    check_decoder(saved, "llama", "no head, tied", model)


OLD_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("old: nothing said", {}),
        ("old: rope_theta", {"rope_theta": 300.0, "num_key_value_heads": 2}),
        ("old: linear", {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
        (
            "old: llama3",
            {"rope_theta": 300.0, "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"}},
        ),
        (
            "old: dynamic, beyond",
            {"max_position_embeddings": 8, "rope_scaling": {"type": "dynamic", "factor": 3.0}},
        ),
    ],
)
def test_llama_with_an_old_configuration(saved: Path, tmp_path: Path, setting: str, options: dict[str, Any]) -> None:
    model, load = written(tmp_path / "old", {**OLD_LLAMA, **options})
    check_decoder(saved, "llama", setting, model, load=load)


@pytest.mark.parametrize(("setting", "window"), [("plain", None), ("window 4", 4), ("window 3", 3)])
def test_mistral(saved: Path, setting: str, window: int | None) -> None:
    config = MistralConfig(**tiny(num_key_value_heads=2, sliding_window=window))
    check_decoder(saved, "mistral", setting, MistralModel(config))


def test_mistral_defaults(saved: Path, tmp_path: Path) -> None:
    """A file that leaves out the number of key-value heads means eight of them."""
    old = {**OLD_LLAMA, "model_type": "mistral", "num_attention_heads": 16, "head_dim": 8, "sliding_window": 4}
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, "mistral", "old: kv heads left out", model, load=load)


@pytest.mark.parametrize(
    ("setting", "options"),
    [("plain", {}), ("window 4", {"sliding_window": 4}), ("head_dim 16", {"head_dim": 16})],
)
def test_mixtral(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = MixtralConfig(**tiny(num_key_value_heads=2, num_local_experts=4, **options))
    check_decoder(saved, "mixtral", setting, MixtralModel(config))


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("all slide", {"sliding_window": 4}),
        ("one slides", {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}),
    ],
)
def test_ministral(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = MinistralConfig(**tiny(num_key_value_heads=2, head_dim=8, **options))
    check_decoder(saved, "ministral", setting, MinistralModel(config))
