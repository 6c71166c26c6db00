from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
)

import toposcope

from .decoders import check_decoder, file, tiny, written


@pytest.mark.parametrize(
    ("setting", "options"),
    [("plain", {}), ("GQA, biases", {"num_key_value_heads": 2, "attention_bias": True})],
)
def test_olmo(saved: Path, setting: str, options: dict[str, Any]) -> None:
    check_decoder(saved, "olmo", setting, OlmoForCausalLM(OlmoConfig(**tiny(**options))))
    with toposcope.load(saved) as ours:
        assert not ours.layers[0].spec.warnings


def test_clipping_is_named(saved: Path) -> None:
    """A limit that no value reaches changes nothing, but the reader is told of it."""
    model = OlmoForCausalLM(OlmoConfig(**tiny(clip_qkv=1000.0)))
    check_decoder(saved, "olmo", "clip_qkv out of reach", model)
    with toposcope.load(saved) as ours:
        assert all("1000" in layer.spec.warnings[0] for layer in ours.layers)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("plain", {}),
        ("GQA, biases", {"num_key_value_heads": 2, "attention_bias": True}),
        ("base 500", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ],
)
def test_olmo2(saved: Path, setting: str, options: dict[str, Any]) -> None:
    check_decoder(saved, "olmo2", setting, Olmo2ForCausalLM(Olmo2Config(**tiny(**options))), after="mlp")


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.2}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("three slide", {}),
        ("GQA", {"num_key_value_heads": 2}),
        (
            "yarn on full layers",
            {
                "rope_parameters": {
                    "full_attention": {**YARN, "rope_theta": 1e3},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
                }
            },
        ),
    ],
)
def test_olmo3(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Olmo3Config(**tiny(num_hidden_layers=4, sliding_window=4, **options))
    check_decoder(saved, "olmo3", setting, Olmo3ForCausalLM(config), after="mlp")


def test_olmo3_with_an_old_configuration(saved: Path, tmp_path: Path) -> None:
    old = file(model_type="olmo3", num_hidden_layers=4, sliding_window=4, rope_theta=500000.0, rope_scaling=YARN)
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, "olmo3", "old: yarn", model, after="mlp", load=load)
