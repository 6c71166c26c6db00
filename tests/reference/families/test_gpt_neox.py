from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, GPTNeoXModel

import toposcope

from .harness import check_self_attention, rewrite_config

TINY = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("a quarter rotates", {}),
        ("half rotates", {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}),
        ("all rotates", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
        ("serial residual", {"use_parallel_residual": False}),
        ("no biases", {"attention_bias": False}),
        ("eps 1e-2", {"layer_norm_eps": 1e-2}),
        (
            "linear",
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "factor": 4.0,
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
        ),
    ],
)
def test_gpt_neox(saved: Path, setting: str, options: dict[str, Any]) -> None:
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**{**TINY, **options}))
    check_self_attention(
        saved,
        "gpt_neox",
        setting,
        model,
        lambda m: m.gpt_neox.layers,
        outputs=lambda m: [layer.attention for layer in m.gpt_neox.layers],
    )


@pytest.mark.parametrize(("fraction", "keys"), [(0.5, {"rotary_pct": 0.5, "rotary_emb_base": 300}), (0.25, {})])
def test_old_configuration(saved: Path, fraction: float, keys: dict[str, Any]) -> None:
    """Pythia's files say `rotary_pct` and `rotary_emb_base`; without them, a quarter of each head rotates."""
    theta = keys.get("rotary_emb_base", 1e4)
    config = GPTNeoXConfig(**TINY, rope_parameters={"rope_theta": float(theta), "partial_rotary_factor": fraction})

    def load(directory: Path) -> toposcope.Model:
        rewrite_config(directory, drop=("rope_parameters", "attention_bias", "layer_norm_eps"), **keys)
        return toposcope.load(directory)

    setting = f"old configuration, {len(keys)} keys"
    check_self_attention(saved, "gpt_neox", setting, GPTNeoXModel(config), lambda m: m.layers, load=load)
