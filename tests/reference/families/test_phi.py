from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Phi3Config, Phi3ForCausalLM, PhiConfig, PhiForCausalLM

from .decoders import check_decoder, file, tiny, written


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("half rotates", {}),
        ("quarter rotates", {"partial_rotary_factor": 0.25, "num_attention_heads": 2}),
        ("all rotates, GQA", {"partial_rotary_factor": 1.0, "num_key_value_heads": 2}),
        ("qk_layernorm", {"qk_layernorm": True}),
        (
            "linear, new keys",
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "factor": 4.0,
                    "rope_theta": 100.0,
                    "partial_rotary_factor": 0.5,
                }
            },
        ),
    ],
)
def test_phi(saved: Path, setting: str, options: dict[str, Any]) -> None:
    check_decoder(saved, "phi", setting, PhiForCausalLM(PhiConfig(**tiny(**options))), after=None)


def test_phi_with_an_old_configuration(saved: Path, tmp_path: Path) -> None:
    """As published, with the fraction that rotates left out."""
    old = file(model_type="phi", rope_theta=300.0, rope_scaling=None, num_key_value_heads=None)
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, "phi", "old: fraction left out", model, after=None, load=load)


LONG = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 4.0, 8.0, 30.0],
}
LONG_PARTLY = {**LONG, "short_factor": [1.0, 2.0], "long_factor": [3.0, 20.0], "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("plain", {}),
        ("GQA", {"num_key_value_heads": 2}),
        ("window 4", {"sliding_window": 4}),
        ("half rotates", {"partial_rotary_factor": 0.5}),
        ("longrope, within", {"rope_parameters": LONG, "original_max_position_embeddings": 16}),
        ("longrope, at the end", {"rope_parameters": LONG, "original_max_position_embeddings": 12}),
        ("longrope, beyond", {"rope_parameters": LONG, "original_max_position_embeddings": 11}),
        ("longrope, factor", {"rope_parameters": {**LONG, "factor": 9.0}, "original_max_position_embeddings": 8}),
        (
            "longrope, attention factor",
            {"rope_parameters": {**LONG, "attention_factor": 1.7}, "original_max_position_embeddings": 8},
        ),
        ("longrope, half rotates", {"rope_parameters": LONG_PARTLY, "original_max_position_embeddings": 8}),
    ],
)
def test_phi3(saved: Path, setting: str, options: dict[str, Any]) -> None:
    check_decoder(saved, "phi3", setting, Phi3ForCausalLM(Phi3Config(**tiny(**options))))


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
@pytest.mark.parametrize(("reach", "original"), [("within", 32), ("beyond", 8)])
def test_phi3_with_an_old_configuration(saved: Path, tmp_path: Path, name: str, reach: str, original: int) -> None:
    """Published files have called LongRoPE by three names, of which transformers 5 no longer reads 'su'."""
    scaling = {"type": name, "short_factor": LONG["short_factor"], "long_factor": LONG["long_factor"]}
    old = file(
        model_type="phi3",
        rope_theta=100.0,
        rope_scaling=scaling,
        original_max_position_embeddings=original,
        sliding_window=None,
    )
    theirs = {**old, "rope_scaling": {**scaling, "type": "longrope" if name == "su" else name}}
    model, load = written(tmp_path / "old", theirs, ours=old)
    check_decoder(saved, "phi3", f"old: {name}, {reach}", model, load=load)
