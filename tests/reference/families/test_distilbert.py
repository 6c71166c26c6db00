from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from transformers import DistilBertConfig, DistilBertForMaskedLM, DistilBertModel

import toposcope
from toposcope.encodings import sinusoidal

from .encoders import check_post_norm

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "dim": 32,
    "hidden_dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}


def base(model: nn.Module) -> nn.Module:
    return getattr(model, "distilbert", model)


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("bare", DistilBertModel, {}),
        ("with a head", DistilBertForMaskedLM, {}),
        ("two heads", DistilBertModel, {"n_heads": 2}),
        ("sinusoidal table", DistilBertModel, {"sinusoidal_pos_embds": True}),
    ],
)
def test_distilbert(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check_post_norm(
        saved,
        "distilbert",
        setting,
        kind(DistilBertConfig(**{**TINY, **options})),
        lambda m: base(m).transformer.layer,
        outputs=lambda m: [layer.attention.out_lin for layer in base(m).transformer.layer],
        after=lambda m: [layer.ffn for layer in base(m).transformer.layer],
        position_module=lambda m: base(m).embeddings.position_embeddings,
    )


def test_a_stored_sinusoid_is_the_one_of_the_paper(saved: Path) -> None:
    DistilBertModel(DistilBertConfig(**TINY, sinusoidal_pos_embds=True)).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        encoding = ours.layers[0].encoding
        assert any("sinusoid" in note for note in encoding.notes)
        exact = sinusoidal(32).input
        assert encoding.input is not None
        assert exact is not None
        np.testing.assert_allclose(encoding.input.vectors(np.arange(64)), exact.vectors(np.arange(64)), atol=1e-6)
