"""Scalings that depend on the length of the text, put into a running model: the same as a model configured so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from tests.reference.tiny import SIZES, build, inputs
from toposcope.models.swap_encoding import swap_encoding

ORIGINAL = 8


def run(model: Any, length: int) -> Any:
    with torch.no_grad():
        return model(**inputs("llama", length=length)).logits


@pytest.mark.parametrize("length", [5, ORIGINAL, ORIGINAL + 1, 17])
@pytest.mark.parametrize(
    ("written", "rope"),
    [
        ("rope:scaling=dynamic,factor=4,original_context=8", {"rope_type": "dynamic", "factor": 4.0}),
        (
            "rope:scaling=longrope,factor=4,original_context=8,short_factor=1/1/1/1,long_factor=2/3/4/5",
            {
                "rope_type": "longrope",
                "factor": 4.0,
                "original_max_position_embeddings": ORIGINAL,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0, 3.0, 4.0, 5.0],
            },
        ),
    ],
    ids=["dynamic", "longrope"],
)
def test_the_length_of_the_text_decides_the_frequencies(written: str, rope: dict[str, Any], length: int) -> None:
    model = build("llama")
    sizes = {**SIZES, "max_position_embeddings": ORIGINAL}  # what transformers' dynamic scaling counts from
    config = hf.LlamaConfig(**sizes, num_key_value_heads=2, rope_parameters={"rope_theta": 10000.0, **rope})
    twin = hf.LlamaForCausalLM(config).eval()
    twin.load_state_dict(model.state_dict())
    with swap_encoding(model, written):
        inside = run(model, length)
    assert torch.allclose(inside, run(twin, length), rtol=0, atol=3e-6)
    if length > ORIGINAL:
        assert not torch.allclose(inside, run(model, length), rtol=0, atol=1e-4)
