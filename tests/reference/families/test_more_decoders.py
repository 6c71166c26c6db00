"""Families that vary the plain decoder in one or two places each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    Cohere2Config,
    Cohere2Model,
    CohereConfig,
    CohereModel,
    Exaone4Config,
    Exaone4Model,
    Glm4Config,
    Glm4Model,
    GlmConfig,
    GlmModel,
    NemotronConfig,
    NemotronModel,
    PersimmonConfig,
    PersimmonModel,
    SmolLM3Config,
    SmolLM3Model,
    StableLmConfig,
    StableLmModel,
    Starcoder2Config,
    Starcoder2Model,
)

import toposcope

from .decoders import check_decoder, file, tiny, written


@pytest.mark.parametrize(
    ("setting", "options"),
    [("biases", {}), ("no biases", {"use_bias": False}), ("window 4", {"sliding_window": 4})],
)
def test_starcoder2(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Starcoder2Config(**tiny(num_key_value_heads=2, **options))
    check_decoder(saved, "starcoder2", setting, Starcoder2Model(config))


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("quarter rotates", {}),
        ("half rotates, GQA", {"partial_rotary_factor": 0.5, "num_key_value_heads": 2}),
        ("biases", {"use_qkv_bias": True}),
        ("a norm for each head", {"qk_layernorm": True, "num_key_value_heads": 2}),
    ],
)
def test_stablelm(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = StableLmConfig(**tiny(num_key_value_heads=4) | options)
    check_decoder(saved, "stablelm", setting, StableLmModel(config))


def test_stablelm_in_parallel(saved: Path) -> None:
    config = StableLmConfig(**tiny(num_key_value_heads=4, use_parallel_residual=True))
    check_decoder(saved, "stablelm", "parallel", StableLmModel(config), after=None)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("plain", {}),
        ("biases", {"attention_bias": True}),
        ("a gain for each head", {"use_qk_norm": True, "num_key_value_heads": 2}),
    ],
)
def test_cohere(saved: Path, setting: str, options: dict[str, Any]) -> None:
    # the gains of the heads are a matrix, which the harness makes small: hence the larger weights
    check_decoder(saved, "cohere", setting, CohereModel(CohereConfig(**tiny(**options))), after=None, size=2.0)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("every fourth without position", {"num_hidden_layers": 4, "sliding_window": 4}),
        ("listed", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}),
    ],
)
def test_cohere2(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Cohere2Config(**tiny(num_key_value_heads=2) | options)
    check_decoder(saved, "cohere2", setting, Cohere2Model(config), after=None)
    with toposcope.load(saved) as ours:
        assert {layer.encoding.name for layer in ours.layers} == {"rope", "none"}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("every fourth without position", {}),
        ("listed", {"no_rope_layers": [0, 1, 1, 0]}),
        ("windows on the others", {"use_sliding_window": True, "sliding_window": 4, "no_rope_layers": [1, 0, 1, 0]}),
    ],
)
def test_smollm3(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = SmolLM3Config(**tiny(num_hidden_layers=4, num_key_value_heads=2) | options)
    check_decoder(saved, "smollm3", setting, SmolLM3Model(config))
    with toposcope.load(saved) as ours:
        assert {layer.encoding.name for layer in ours.layers} == {"rope", "none"}


@pytest.mark.parametrize(
    ("setting", "options"),
    [("half rotates", {}), ("all rotates, no biases", {"partial_rotary_factor": 1.0, "attention_bias": False})],
)
def test_glm(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = GlmConfig(**tiny(num_key_value_heads=2, head_dim=8, **options))
    check_decoder(saved, "glm", setting, GlmModel(config))


def test_glm4(saved: Path) -> None:
    config = Glm4Config(**tiny(num_key_value_heads=2, head_dim=16))
    check_decoder(saved, "glm4", "half rotates", Glm4Model(config))


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("half rotates, GQA", {"num_key_value_heads": 2}),
        ("quarter rotates, head_dim 16", {"partial_rotary_factor": 0.25, "head_dim": 16, "attention_bias": True}),
    ],
)
def test_nemotron(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = NemotronConfig(**tiny(num_key_value_heads=4) | options)
    check_decoder(saved, "nemotron", setting, NemotronModel(config))


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("every fourth without position", {}),
        ("no window: all rotate", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    ],
)
def test_exaone4(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = Exaone4Config(**tiny(num_hidden_layers=4, num_key_value_heads=2, sliding_window=4) | options)
    check_decoder(saved, "exaone4", setting, Exaone4Model(config), after="mlp")


def test_exaone4_with_an_old_configuration(saved: Path, tmp_path: Path) -> None:
    """As published at first: the pattern of layers in letters, which transformers 5 reads only beside a list."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    theirs = file(
        model_type="exaone4", num_hidden_layers=4, num_key_value_heads=2, sliding_window=4, layer_types=kinds
    )
    ours = {**theirs, "layer_types": None, "sliding_window_pattern": "LLG"}
    model, load = written(tmp_path / "old", theirs, ours=ours)
    check_decoder(saved, "exaone4", "old: pattern in letters", model, after="mlp", load=load)


def test_persimmon(saved: Path) -> None:
    check_decoder(saved, "persimmon", "half rotates", PersimmonModel(PersimmonConfig(**tiny())))


def test_persimmon_without_norms(saved: Path) -> None:
    config = PersimmonConfig(**tiny(qk_layernorm=False, partial_rotary_factor=0.25))
    check_decoder(saved, "persimmon", "quarter rotates, no norms", PersimmonModel(config))


@pytest.mark.parametrize(
    ("kind", "options", "after"),
    [
        ("cohere", {}, None),
        ("cohere2", {"num_hidden_layers": 4, "sliding_window": 4}, None),
        ("smollm3", {"num_hidden_layers": 4}, "post_attention_layernorm"),
        (
            "smollm3",
            {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 4},
            "post_attention_layernorm",
        ),
        ("stablelm", {"num_key_value_heads": 4}, "post_attention_layernorm"),
        ("starcoder2", {}, "post_attention_layernorm"),
        ("glm", {"head_dim": 8}, "post_attention_layernorm"),
        ("nemotron", {"num_key_value_heads": 4}, "post_attention_layernorm"),
        ("mixtral", {"num_attention_heads": 8, "num_local_experts": 4}, "post_attention_layernorm"),
        ("persimmon", {}, "post_attention_layernorm"),
    ],
)
def test_what_a_file_leaves_out(
    saved: Path, tmp_path: Path, kind: str, options: dict[str, Any], after: str | None
) -> None:
    """Bases, fractions, patterns and head counts that equal the architecture's default are often not written."""
    settings = file(model_type=kind, **options)
    model, load = written(tmp_path / "old", settings)
    check_decoder(saved, kind, "old: defaults left out", model, after=after, load=load)
