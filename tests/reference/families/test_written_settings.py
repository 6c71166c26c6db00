"""Settings as real files write them, of families that are read by a table: both generations, and what is left out.

transformers builds the model from the very config.json that Toposcope reads; compared as in tests.architectures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForImageTextToText,
)

import toposcope
from tests.architectures import build, inputs, randomise
from tests.architectures.compare import differences
from tests.architectures.record import record
from toposcope.checkpoints.attention import attention
from toposcope.checkpoints.families import multimodal

from .harness import TOLERANCE, array, watch_inputs
from .written import PAIR, SIZES, STORED, check_written

EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **EXPERTS,
}
INDEXED = {**LATENT, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 16}
STATES = {
    "num_key_value_heads": 2,
    "mamba_d_state": 8,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_dt_rank": 4,
    "use_mamba_kernels": False,
}
GATED = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 16,
}
MSCALE = {"mscale": 1.0, "mscale_all_dim": 1.0}
GROWS = {"llama_4_scaling_beta": 0.3}
CONVOLVED = ["conv", "full_attention"] * 2
TOWERS = {  # as small as Phi 4's can be
    "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    "audio_config": {"hidden_size": 32, "intermediate_size": 32, "num_blocks": 1, "num_attention_heads": 2},
}
KINDS = ["sliding_attention", "full_attention"]

TOWER = "vision_tower.layers.0.self_attn.q_proj.weight"  # of what is not the text part
GROUP = {"mistral4": "encoder"}  # not built for text alone
BESIDE = {"falcon_h1", "gemma3n_text", "cohere2_moe"}  # nothing reads the stream right after attention

DECODERS: list[tuple[str, str, dict[str, Any]]] = [
    ("arcee", "old: yarn", {"rope_theta": 300.0, "rope_scaling": YARN}),
    ("arcee", "biases", {"attention_bias": True, "num_key_value_heads": 2}),
    ("seed_oss", "heads left out", {"num_attention_heads": 8, "attention_bias": True}),
    ("helium", "heads left out", {"hidden_size": 2560, "num_attention_heads": 20, "num_hidden_layers": 1}),
    ("helium", "old: base", {"rope_theta": 300.0, "head_dim": 8, "num_key_value_heads": 2}),
    ("ernie4_5", "old: base, biases", {"rope_theta": 300.0, "use_bias": True, "head_dim": 16}),
    ("ernie4_5", "nothing said", {"num_key_value_heads": 4}),
    ("ernie4_5_moe", "old: base", {"rope_theta": 300.0, "moe_num_experts": 4, "moe_k": 2, **EXPERTS}),
    ("jais2", "old: base, no biases", {"rope_theta": 300.0, "attention_bias": False, "num_key_value_heads": 2}),
    ("apertus", "nothing said", {}),
    ("apertus", "old: llama3", {"rope_theta": 300.0, "rope_scaling": LLAMA3}),
    (
        "minimax_m2",
        "old: rotary_dim",
        {"rope_theta": 300.0, "rotary_dim": 8, "head_dim": 16, "num_key_value_heads": 2, **EXPERTS},
    ),
    ("olmoe", "old: base, groups", {"rope_theta": 300.0, "num_key_value_heads": 2, **EXPERTS}),
    (
        "dots1",
        "windows above",
        {
            "sliding_window": 5,
            "max_window_layers": 2,
            "num_key_value_heads": 2,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            **EXPERTS,
        },
    ),
    ("cwm", "nothing said", {"sliding_window": 5, "num_attention_heads": 8}),
    ("cwm", "layers listed", {"sliding_window": 5, "layer_types": KINDS * 2, "num_key_value_heads": 4}),
    ("ministral3", "nothing said", {"num_attention_heads": 8}),
    (
        "ministral3",
        "old: grows",
        {"rope_theta": 300.0, "num_key_value_heads": 2, "rope_scaling": {**YARN, "llama_4_scaling_beta": 0.3}},
    ),
    ("vaultgemma", "no cap", {"attn_logit_softcapping": None, "head_dim": 16, "sliding_window": 5}),
    (
        "hunyuan_v1_dense",
        "old: alpha",
        {"head_dim": 8, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
    ),
    ("hunyuan_v1_dense", "old: base", {"head_dim": 16, "rope_theta": 300.0, "attention_bias": True}),
    (
        "phimoe",
        "old: longrope",
        {
            "num_key_value_heads": 2,
            "original_max_position_embeddings": 8,
            "rope_theta": 300.0,
            "attention_bias": True,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [2.0, 2.1, 2.2, 2.3],
                "short_mscale": 1.2,
                "long_mscale": 1.2,
                "original_max_position_embeddings": 8,
            },
            **EXPERTS,
        },
    ),
    (
        "glm4_moe",
        "old: half, biases",
        {"partial_rotary_factor": 0.5, "rope_theta": 300.0, "attention_bias": True, **LATENT},
    ),
    ("glm4_moe", "norms, groups", {"use_qk_norm": True, **LATENT, "num_key_value_heads": 2}),
    ("deepseek_v32", "old: yarn", {"rope_theta": 300.0, "rope_scaling": {**YARN, "mscale_all_dim": 1.0}, **INDEXED}),
    ("glm_moe_dsa", "biases", {"attention_bias": True, **INDEXED}),
    ("glm4_moe_lite", "old: base", {"rope_theta": 300.0, **LATENT}),
    ("gpt_oss", "nothing said", {"num_attention_heads": 8, "sliding_window": 5, **EXPERTS}),
    (
        "gpt_oss",
        "old: yarn, not truncated",
        {
            "rope_theta": 300.0,
            "rope_scaling": {**YARN, "truncate": False},
            "sliding_window": 5,
            "head_dim": 16,
            "num_key_value_heads": 2,
            **EXPERTS,
        },
    ),
    (
        "llama4_text",
        "old: llama3",
        {
            "rope_theta": 300.0,
            "rope_scaling": LLAMA3,
            "head_dim": 16,
            "num_key_value_heads": 2,
            "attention_chunk_size": 6,
            "floor_scale": 4,
            "no_rope_layers": [1, 0, 1, 1],
            "intermediate_size_mlp": 48,
            **EXPERTS,
        },
    ),
    (
        "llama4_text",
        "no norms, no growth",
        {
            "head_dim": 16,
            "num_key_value_heads": 2,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_chunk_size": 7,
            "intermediate_size_mlp": 48,
            **EXPERTS,
        },
    ),
    (
        "qwen3_next",
        "old: interval",
        {
            "rope_theta": 300.0,
            "partial_rotary_factor": 0.5,
            "full_attention_interval": 2,
            "head_dim": 16,
            "attention_bias": True,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "shared_expert_intermediate_size": 16,
            **EXPERTS,
        },
    ),
    (
        "gemma3n_text",
        "old: two bases",
        {
            "rope_theta": 900.0,
            "rope_local_base_freq": 100.0,
            "head_dim": 16,
            "num_key_value_heads": 2,
            "sliding_window": 5,
            "num_kv_shared_layers": 2,
            "layer_types": KINDS * 2,
            "laurel_rank": 8,
            "vocab_size_per_layer_input": 99,
            "hidden_size_per_layer_input": 8,
            "activation_sparsity_pattern": [0.0] * 4,
            "intermediate_size": [48] * 4,
        },
    ),
    (
        "gemma4_text",
        "global heads",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 5,
            "layer_types": KINDS * 2,
            "vocab_size_per_layer_input": 99,
            "hidden_size_per_layer_input": 8,
        },
    ),
    (
        "gemma4_text",
        "global heads not tied",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "sliding_window": 5,
            "num_hidden_layers": 7,
            "num_kv_shared_layers": 1,
            "vocab_size_per_layer_input": 99,
            "hidden_size_per_layer_input": 8,
        },
    ),
    (
        "granitemoehybrid",
        "old: rope",
        {"position_embedding_type": "rope", "layer_types": ["mamba", "attention"] * 2, **STATES},
    ),
    (
        "granitemoehybrid",
        "no position",
        {"layer_types": ["mamba", "attention"] * 2, "attention_multiplier": 0.3, **STATES},
    ),
    ("jamba", "period 2", {"attn_layer_period": 2, "attn_layer_offset": 1, **STATES, **EXPERTS}),
    (
        "bamba",
        "old: base",
        {"attn_layer_indices": [1, 2], "rope_theta": 300.0, "partial_rotary_factor": 0.25, **STATES},
    ),
    (
        "nemotron_h",
        "a pattern",
        {
            "hybrid_override_pattern": "M*-*",
            "head_dim": 16,
            "num_key_value_heads": 2,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "layer_norm_epsilon": 0.01,
        },
    ),
    (
        "lfm2",
        "old: indices",
        {"full_attn_idxs": [1, 3], "rope_theta": 300.0, "norm_eps": 0.01, "num_key_value_heads": 2},
    ),
    (
        "falcon_h1",
        "multipliers",
        {
            "key_multiplier": 0.6,
            "attention_in_multiplier": 1.4,
            "attention_out_multiplier": 0.8,
            "rope_theta": 1e11,
            **STATES,
        },
    ),
    ("solar_open", "old: base", {"rope_theta": 300.0, **LATENT, "head_dim": 16, "num_key_value_heads": 2}),
    ("aria_text", "old: base", {"rope_theta": 300.0, "moe_num_experts": 4, "num_key_value_heads": 2, "head_dim": 16}),
    ("aria_text", "nothing said", {"moe_num_experts": 4, "attention_bias": True, "rms_norm_eps": 0.05}),
    ("biogpt", "nothing said", {"num_attention_heads": 8, "pad_token_id": 1}),
    ("biogpt", "not scaled", {"scale_embedding": False, "layer_norm_eps": 0.05}),
    ("axk1", "old: yarn", {"rope_theta": 300.0, "rope_scaling": {**YARN, **MSCALE}, **LATENT}),
    ("axk1", "halves paired", {"rope_interleave": False, "attention_bias": True, **LATENT}),
    ("youtu", "old: base", {"rope_theta": 300.0, "rope_interleave": True, **LATENT, "q_lora_rank": None}),
    ("youtu", "nothing said", LATENT),
    ("mistral4", "nothing said", LATENT),
    ("mistral4", "new: grows", {"rope_parameters": {**YARN, **MSCALE, **GROWS, "rope_theta": 300.0}, **LATENT}),
    (
        "kimi_linear",
        "as published",
        {
            **LATENT,
            "q_lora_rank": None,
            "head_dim": 12,
            "rope_theta": 300.0,
            "mla_use_nope": True,
            "rms_norm_eps": 0.05,
            "linear_attn_config": {
                "full_attn_layers": [2, 4],
                "kda_layers": [1, 3],
                "head_dim": 16,
                "num_heads": 2,
                "short_conv_kernel_size": 4,
            },
        },
    ),
    ("kimi_linear", "nothing said", {**LATENT, "num_hidden_layers": 5, "linear_num_heads": 2, "linear_head_dim": 16}),
    ("hy_v3", "nothing said", {**EXPERTS, "num_attention_heads": 8}),
    ("hy_v3", "old: base", {**EXPERTS, "rope_theta": 300.0, "head_dim": 16, "num_key_value_heads": 2}),
    ("flex_olmo", "nothing said", EXPERTS),
    ("flex_olmo", "old: base, groups", {"rope_theta": 300.0, "num_key_value_heads": 2, **EXPERTS}),
    (
        "granitemoeshared",
        "old: multipliers",
        {
            "rope_theta": 300.0,
            "rope_scaling": None,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.3,
            "embedding_multiplier": 3.0,
            "shared_intermediate_size": 16,
            "num_key_value_heads": 2,
            **EXPERTS,
        },
    ),
    ("granitemoeshared", "nothing said", {"shared_intermediate_size": 16, **EXPERTS}),
    (
        "hunyuan_v1_moe",
        "old: alpha",
        {
            "head_dim": 16,
            "num_key_value_heads": 2,
            "rope_theta": 300.0,
            "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1},
            "moe_topk": 2,
            "use_qk_norm": True,
            **EXPERTS,
        },
    ),
    ("hunyuan_v1_moe", "nothing said", {"head_dim": 8, "attention_bias": True, "moe_topk": 2, **EXPERTS}),
    (
        "cohere2_moe",
        "old: first layers dense",
        {
            "rope_theta": 300.0,
            "sliding_window": 5,
            "first_k_dense_replace": 1,
            "num_hidden_layers": 5,
            "head_dim": 8,
            "num_key_value_heads": 2,
            **EXPERTS,
        },
    ),
    ("cohere2_moe", "nothing said", {"sliding_window": 5, **EXPERTS}),
    (
        "cohere2_moe",
        "RMSNorm, prefix slides",
        {
            "rms_norm_eps": 0.05,
            "sliding_window": 5,
            "first_k_dense_replace": 3,
            "prefix_dense_sliding_window_pattern": 2,
            "sliding_window_pattern": 3,
            "num_hidden_layers": 7,
            "head_dim": 16,
            **EXPERTS,
        },
    ),
    ("cohere2_moe", "dense listed", {"mlp_layer_types": ["sparse", "dense"] * 2, "sliding_window": 5, **EXPERTS}),
    (
        "cohere2_moe",
        "layers listed",
        {"layer_types": KINDS * 2, "sliding_window": 5, "head_dim": 8, "attention_bias": True, **EXPERTS},
    ),
    ("phi4_multimodal", "nothing said", {"num_attention_heads": 8, "hidden_size": 64, **TOWERS}),
    (
        "phi4_multimodal",
        "old: longrope",
        {
            "num_key_value_heads": 2,
            "partial_rotary_factor": 0.75,
            "hidden_size": 64,
            "rope_theta": 300.0,
            "original_max_position_embeddings": 8,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.5] * 6},
            **TOWERS,
        },
    ),
    ("lfm2_moe", "nothing said", {"num_attention_heads": 8, "layer_types": CONVOLVED, **EXPERTS}),
    (
        "lfm2_moe",
        "old: base",
        {
            "rope_theta": 300.0,
            "norm_eps": 0.05,
            "num_key_value_heads": 2,
            "num_dense_layers": 1,
            "layer_types": CONVOLVED,
            **EXPERTS,
        },
    ),
    *(
        (kind, what, {**GATED, **EXPERTS, **options})
        for kind in ("qwen3_5_text", "qwen3_5_moe_text")
        for what, options in (
            ("nothing said", {"num_attention_heads": 8}),
            (
                "new: in three axes",
                {
                    "head_dim": 16,
                    "num_key_value_heads": 2,
                    "layer_types": ["linear_attention", "full_attention"] * 2,
                    "rope_parameters": {
                        "rope_type": "default",
                        "rope_theta": 300.0,
                        "partial_rotary_factor": 0.5,
                        "mrope_section": [2, 1, 1],
                        "mrope_interleaved": True,
                    },
                },
            ),
        )
    ),
    (
        "gemma4_unified_text",
        "global heads",
        {
            "head_dim": 16,
            "global_head_dim": 32,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 5,
            "layer_types": KINDS * 2,
        },
    ),
    ("gemma4_unified_text", "nothing said", {"num_attention_heads": 8, "sliding_window": 5, "num_hidden_layers": 6}),
]


@pytest.mark.parametrize(
    ("kind", "setting", "options"), DECODERS, ids=[f"{kind}: {what}" for kind, what, _ in DECODERS]
)
def test_decoders(tmp_path: Path, kind: str, setting: str, options: dict[str, Any]) -> None:
    stored = STORED[len(setting) % len(STORED)]
    settings = {"model_type": kind, **SIZES, **options}
    check_written(tmp_path, setting, settings, GROUP.get(kind, "causal"), stored=stored, follows=kind not in BESIDE)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "kind", ["bart", "mbart", "marian", "pegasus", "m2m_100", "blenderbot", "blenderbot-small", "plbart"]
)
def test_encoders_with_decoders(tmp_path: Path, kind: str, scaled: bool) -> None:
    check_written(tmp_path, f"scaled {scaled}", {"model_type": kind, **PAIR, "scale_embedding": scaled}, "seq2seq")


TEXT = {key: value for key, value in SIZES.items() if key not in ("pad_token_id", "bos_token_id", "eos_token_id")}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "depth": 2,
    "num_heads": 4,
    "embed_dim": 32,
    "out_hidden_size": 32,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
MROPE = {"type": "mrope", "mrope_section": [2, 1, 1]}


@pytest.mark.parametrize(
    ("setting", "settings"),
    [
        (
            "flat, as the first files",
            {"model_type": "qwen2_vl", **TEXT, "num_key_value_heads": 2, "rope_theta": 300.0, "rope_scaling": MROPE},
        ),
        (
            "heads left out",
            {
                "model_type": "llava",
                "text_config": {"model_type": "mistral", **TEXT, "num_attention_heads": 8, "sliding_window": 5},
            },
        ),
        (
            "text of another type",
            {"model_type": "llava_next", "text_config": {"model_type": "qwen2", **TEXT, "num_key_value_heads": 2}},
        ),
        (
            "type not named",
            {"model_type": "llava", "text_config": {**TEXT, "rope_theta": 300.0, "rope_scaling": LLAMA3}},
        ),
        (
            "one group",
            {
                "model_type": "paligemma",
                "text_config": {"model_type": "gemma", **TEXT, "head_dim": 16, "num_key_value_heads": 1},
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_text_part_of_models_of_several_inputs(tmp_path: Path, setting: str, settings: dict[str, Any]) -> None:
    settings = {"vision_config": VISION, "image_token_id": 97, **settings}
    check_written(tmp_path, setting, settings, "image_text")


def test_what_nested_configurations_leave_out_is_what_transformers_means() -> None:
    for kind, (_, unsaid) in multimodal.ALIKE.items():
        if not unsaid:  # under another name only
            continue
        usual = vars(CONFIG_MAPPING[kind]())
        theta = usual["rope_parameters"]["rope_theta"]
        assert {key: theta if key == "rope_theta" else usual[key] for key in unsaid} == unsaid
    for kind, sizes in multimodal.SIZES.items():
        usual = vars(CONFIG_MAPPING[kind]())
        assert {key: usual[key] for key in sizes} == sizes


def test_axes_of_a_rotation_in_several_axes(tmp_path: Path) -> None:
    """Positions in time, height and width, as images have them, by Qwen2-VL's blocks and Qwen3-VL's every third."""
    for kind, sections in (("qwen2_vl", {"type": "mrope"}), ("qwen3_vl", {"mrope_interleaved": True})):
        rope = {"rope_theta": 300.0, "rope_type": "default", **sections, "mrope_section": [4, 2, 2]}
        text = {**TEXT, "model_type": f"{kind}_text", "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64}
        settings = {"model_type": kind, "vision_config": VISION, "text_config": {**text, "rope_parameters": rope}}
        directory = tmp_path / kind
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(settings))
        model = AutoModelForImageTextToText.from_config(
            AutoConfig.from_pretrained(directory), attn_implementation="eager"
        )
        model = model.float().eval()
        randomise(model)
        model.save_pretrained(directory)
        at = np.random.default_rng(1).integers(0, 30, (3, 12))
        given = {"input_ids": torch.arange(5, 17)[None], "use_cache": False}
        seen = watch_inputs([model.model.language_model.layers[0]])
        noted = record(model, {**given, "position_ids": torch.from_numpy(at)[:, None]})
        with toposcope.load(directory) as ours:
            mine = attention(ours.layers[0], array(seen[0][0][0]), positions=at.T)
        np.testing.assert_allclose(mine, array(noted.attended[0].probabilities[0]), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("outer", "inner", "prefix"),
    [
        ("gemma3n", "gemma3n_text", "model.language_model."),
        ("kimi_k25", "deepseek_v3", "language_model.model."),
        ("llama4", "llama4_text", "language_model.model."),
        ("qwen3_5", "qwen3_5_text", "model.language_model."),
    ],
)
def test_names_as_published(tmp_path: Path, outer: str, inner: str, prefix: str) -> None:
    """The text part under the prefix that published files have, beside a tower that is none of its business."""
    model = build(inner, "causal")
    model.save_pretrained(tmp_path)
    tensors = {
        name.replace("model.", prefix, 1): each for name, each in load_file(tmp_path / "model.safetensors").items()
    }
    tensors[TOWER] = np.ones((4, 4), dtype=np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    text["model_type"] = {"deepseek_v3": "kimi_k2"}.get(inner, inner)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": outer, "text_config": text}))
    noted = record(model, inputs(model, 2, 21, 3))
    with toposcope.load(tmp_path) as ours:
        found, missing = differences(ours, model, noted, 2)
        assert not missing
        assert len(found) == len(noted.attended) > 0
        assert max(each.attention for each in found) <= TOLERANCE
        assert any(TOWER in each.tensors for each in ours.skipped)


@pytest.mark.parametrize("kind", ["llama4_text", "ministral3"])
def test_a_query_scale_is_no_second_encoding(tmp_path: Path, kind: str) -> None:
    build(kind, "causal").save_pretrained(tmp_path)
    found = [each for each in toposcope.check(tmp_path).findings if each.id == "mechanisms"]
    assert found
    assert {each.status for each in found} == {"ok"}
