from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import GraniteConfig, GraniteForCausalLM, GraniteMoeConfig, GraniteMoeModel

from .decoders import check_decoder, tiny


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("factors left at 1", {}),
        ("scale", {"attention_multiplier": 0.7}),
        ("factor on what is added", {"attention_multiplier": 0.3, "residual_multiplier": 0.22}),
        (
            "embedding factor, GQA, biases",
            {"embedding_multiplier": 12.0, "num_key_value_heads": 2, "attention_bias": True},
        ),
    ],
)
def test_granite(saved: Path, setting: str, options: dict[str, Any]) -> None:
    check_decoder(saved, "granite", setting, GraniteForCausalLM(GraniteConfig(**tiny(**options))))


def test_granite_moe(saved: Path) -> None:
    config = GraniteMoeConfig(
        **tiny(num_key_value_heads=2, attention_multiplier=0.4, residual_multiplier=0.22, num_local_experts=4)
    )
    check_decoder(saved, "granitemoe", "both factors", GraniteMoeModel(config))
