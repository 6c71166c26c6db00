from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM

import toposcope

from .decoders import check_decoder, file, tiny, written

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 100.0}
TINY_MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("latent queries", {}),
    ("plain queries", {"q_lora_rank": None}),
    ("biases", {"attention_bias": True}),
    ("eps 0.1", {"rms_norm_eps": 0.1}),
    ("base 100", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    ("yarn", {"rope_parameters": YARN}),
    ("yarn, mscale", {"rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    ("yarn, unequal mscale", {"rope_parameters": {**YARN, "mscale": 2.0, "mscale_all_dim": 1.0}}),
    ("yarn, mscale_all_dim alone", {"rope_parameters": {**YARN, "mscale_all_dim": 1.0}}),
]


@pytest.mark.parametrize(("setting", "options"), SETTINGS)
def test_deepseek_v2(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = DeepseekV2Config(**tiny(**TINY_MLA) | options)
    check_decoder(saved, "deepseek_v2", setting, DeepseekV2ForCausalLM(config))


@pytest.mark.parametrize(("setting", "options"), [*SETTINGS, ("half-split pairs", {"rope_interleave": False})])
def test_deepseek_v3(saved: Path, setting: str, options: dict[str, Any]) -> None:
    config = DeepseekV3Config(**tiny(**TINY_MLA) | options)
    check_decoder(saved, "deepseek_v3", setting, DeepseekV3ForCausalLM(config))


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_an_old_configuration(saved: Path, tmp_path: Path, kind: str) -> None:
    """As published: the scaling under its old key, a number of key-value heads that means nothing."""
    scaling = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
    old = file(
        **TINY_MLA,
        model_type=kind,
        rope_theta=100,
        rope_scaling={**scaling, "mscale": 1.0, "mscale_all_dim": 1.0},
    )
    model, load = written(tmp_path / "old", old)
    check_decoder(saved, kind, "old: yarn", model, load=load)


def test_only_the_last_channels_turn(saved: Path) -> None:
    DeepseekV3ForCausalLM(DeepseekV3Config(**tiny(**TINY_MLA))).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        encoding = ours.layers[0].encoding
        assert encoding.name == "mla"
        assert encoding.rotary is not None
        assert encoding.rotary.pairs_F2.tolist() == [[8, 9], [10, 11], [12, 13]]
        assert ours.layers[0].head(0).k.shape == (14, 32)
        assert ours.layers[0].head(0).v.shape == (5, 32)
        assert not ours.skipped
