from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import BloomConfig, BloomForCausalLM, BloomModel

import toposcope

from .harness import check_self_attention, rewrite_config

TINY = {"vocab_size": 64, "hidden_size": 48, "n_layer": 2, "n_head": 4, "attn_implementation": "eager"}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        *((f"{heads} heads", {"n_head": heads}) for heads in (1, 2, 3, 4, 6, 8, 12, 16, 24)),
        ("eps 1e-2", {"layer_norm_epsilon": 1e-2}),
    ],
)
def test_bloom(saved: Path, setting: str, options: dict[str, Any]) -> None:
    model = BloomForCausalLM(BloomConfig(**{**TINY, **options}))
    check_self_attention(
        saved,
        "bloom",
        setting,
        model,
        lambda m: m.transformer.h,
        outputs=lambda m: [block.self_attention.dense for block in m.transformer.h],
        length=24,
    )


def test_residual_after_the_norm(saved: Path) -> None:
    """Attention itself is the same; what it is added to is not, and the layer says so."""
    model = BloomModel(BloomConfig(**TINY, apply_residual_connection_post_layernorm=True))
    check_self_attention(saved, "bloom", "residual after the norm", model, lambda m: m.h)
    with toposcope.load(saved) as ours:
        assert any("normalised stream" in warning for warning in ours.layers[0].spec.warnings)


def test_old_configuration(saved: Path) -> None:
    """The first files call the width `n_embed` and hold a sequence length."""

    def load(directory: Path) -> toposcope.Model:
        rewrite_config(
            directory,
            drop=("hidden_size", "n_head", "layer_norm_epsilon"),
            n_embed=48,
            num_attention_heads=4,
            seq_length=2048,
        )
        model = toposcope.load(directory)
        assert model.spec.context == 2048
        return model

    model = BloomModel(BloomConfig(**TINY))
    check_self_attention(saved, "bloom", "old configuration", model, lambda m: m.h, load=load)
