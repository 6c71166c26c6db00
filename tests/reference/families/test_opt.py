from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM, OPTModel

import toposcope

from .harness import array, check_self_attention, randomise, watch_inputs, watch_outputs

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
    "attn_implementation": "eager",
}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("norm before", {}),
        ("norm after", {"do_layer_norm_before": False}),
        ("narrow embeddings", {"word_embed_proj_dim": 16, "do_layer_norm_before": False}),
        ("no biases", {"enable_bias": False}),
        ("norms without gain", {"layer_norm_elementwise_affine": False}),
    ],
)
def test_opt(saved: Path, setting: str, options: dict[str, Any]) -> None:
    model = OPTForCausalLM(OPTConfig(**{**TINY, **options}))
    check_self_attention(
        saved,
        "opt",
        setting,
        model,
        lambda m: m.model.decoder.layers,
        position_module=lambda m: m.model.decoder.embed_positions,
        outputs=lambda m: [layer.self_attn for layer in m.model.decoder.layers],
        size=2.0,
    )
    with toposcope.load(saved) as ours:
        after = options.get("do_layer_norm_before") is False
        assert ours.layers[0].spec.placement == ("post" if after else "pre")
        assert (ours.token_embedding() is None) == ("word_embed_proj_dim" in options)
        table = ours.layers[0].encoding.input
        assert table is not None
        assert table.length == ours.spec.context == 24


def test_without_the_prefix(saved: Path) -> None:
    """Some files hold the bare model, others the model with its head."""
    check_self_attention(
        saved, "opt", "bare model", OPTModel(OPTConfig(**TINY)), lambda m: m.decoder.layers, size=2.0
    )


def test_the_norm_after_the_addition(saved: Path) -> None:
    """In the 350M the norm acts on the sum; ours must be the norm that theirs applies there."""
    model = OPTModel(OPTConfig(**TINY, do_layer_norm_before=False)).eval()
    randomise(model)
    model.save_pretrained(saved)
    norms = [layer.self_attn_layer_norm for layer in model.decoder.layers]
    before, after = watch_inputs(norms), watch_outputs(norms)
    with torch.no_grad():
        model(input_ids=torch.arange(3, 13)[None])
    with toposcope.load(saved) as ours:
        for layer, given, made in zip(ours.layers, before, after, strict=True):
            norm = layer.weights.residual_norm
            assert norm is not None
            np.testing.assert_allclose(norm(array(given[0])), array(made[0]), atol=1e-5)
