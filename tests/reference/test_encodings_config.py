"""Configurations of both generations: what we read against what transformers' own classes put in force."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    ModernBertConfig,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.gptj.modeling_gptj import GPTJAttention
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.modernbert.modeling_modernbert import ModernBertRotaryEmbedding
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from toposcope.encodings import rope_from_config

SHORT, LONG = [1.0 + 0.1 * i for i in range(8)], [2.0 + 3 * i for i in range(8)]
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}

FLAT: dict[str, tuple[type, type, dict[str, Any]]] = {
    "nothing said": (LlamaConfig, LlamaRotaryEmbedding, {}),
    "base only": (LlamaConfig, LlamaRotaryEmbedding, {"rope_theta": 5e5}),
    "new": (LlamaConfig, LlamaRotaryEmbedding, {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}),
    "new without base": (LlamaConfig, LlamaRotaryEmbedding, {"rope_parameters": {"rope_type": "default"}}),
    "new without base, base above": (
        LlamaConfig,
        LlamaRotaryEmbedding,
        {"rope_theta": 7e5, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    ),
    "base in both places": (
        LlamaConfig,
        LlamaRotaryEmbedding,
        {"rope_theta": 7e5, "rope_parameters": {"rope_type": "default", "rope_theta": 2e4}},
    ),
    "old linear, key type": (
        LlamaConfig,
        LlamaRotaryEmbedding,
        {"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "old yarn": (
        Qwen2Config,
        Qwen2RotaryEmbedding,
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", **YARN}},
    ),
    "yarn, both keys": (
        Qwen2Config,
        Qwen2RotaryEmbedding,
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "type": "linear", **YARN}},
    ),
    "yarn without original": (
        Qwen2Config,
        Qwen2RotaryEmbedding,
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    ),
    "yarn not truncated": (
        Qwen2Config,
        Qwen2RotaryEmbedding,
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.5e5, "truncate": False, **YARN}},
    ),
    "yarn with mscale": (
        Qwen2Config,
        Qwen2RotaryEmbedding,
        {"rope_scaling": {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 16, **YARN}},
    ),
    "llama3": (
        LlamaConfig,
        LlamaRotaryEmbedding,
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    ),
    "old beats new": (
        LlamaConfig,
        LlamaRotaryEmbedding,
        {
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "rope_parameters": {"rope_type": "default", "rope_theta": 9e5},
        },
    ),
    "dynamic ignores the original context": (
        LlamaConfig,
        LlamaRotaryEmbedding,
        {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 100}},
    ),
    "longrope, original above": (
        Phi3Config,
        Phi3RotaryEmbedding,
        {
            "original_max_position_embeddings": 1024,
            "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
        },
    ),
    "su": (
        Phi3Config,
        Phi3RotaryEmbedding,
        {
            "original_max_position_embeddings": 512,
            "rope_scaling": {
                "type": "su",
                "short_factor": SHORT,
                "long_factor": LONG,
                "original_max_position_embeddings": 512,
            },
        },
    ),
    "longrope that an early Phi-3 file calls yarn": (
        Phi3Config,
        Phi3RotaryEmbedding,
        {
            "original_max_position_embeddings": 1024,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "short_factor": SHORT, "long_factor": LONG},
        },
    ),
    "original context above beats the one inside": (
        Phi3Config,
        Phi3RotaryEmbedding,
        {
            "original_max_position_embeddings": 512,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": SHORT,
                "long_factor": LONG,
                "original_max_position_embeddings": 2048,
            },
        },
    ),
    "partial, above": (PhiConfig, PhiRotaryEmbedding, {"partial_rotary_factor": 0.5, "rope_theta": 2e4}),
    "partial, inside": (
        PhiConfig,
        PhiRotaryEmbedding,
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25, "rope_theta": 2e4}},
    ),
    "rotary_pct": (GPTNeoXConfig, GPTNeoXRotaryEmbedding, {"rotary_pct": 0.5, "rotary_emb_base": 5e4}),
}


@pytest.mark.parametrize("case", FLAT)
@pytest.mark.parametrize("length", [64, 3000, 9000])
def test_flat_settings(case: str, length: int) -> None:
    theirs_class, theirs_module, said = FLAT[case]
    raw = {**SMALL, **said}
    if theirs_class is GPTNeoXConfig:
        raw.pop("num_key_value_heads")
    config = theirs_class(**copy.deepcopy(raw), pad_token_id=0)
    theirs = theirs_module(config)
    theirs(torch.zeros(1, 1, 16), torch.arange(length)[None])
    default_partial = 0.5 if theirs_class is PhiConfig else 1.0
    ours = rope_from_config(raw, 16, default_partial=default_partial).rotary
    assert ours is not None
    np.testing.assert_allclose(ours.frequencies(length), theirs.inv_freq.double().numpy(), rtol=3e-6)
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)
    assert ours.channels == 2 * len(theirs.inv_freq)


NESTED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
}
GEMMA: dict[str, dict[str, Any]] = {
    "new": {"rope_parameters": NESTED},
    "old": {
        "rope_theta": 1e6,
        "rope_local_base_freq": 3e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "new with old beside it": {"rope_parameters": NESTED, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "yarn inside, truncate where it is not read": {
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 1e6, "truncate": False, **YARN},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }
    },
    "an original context above is not read for nested settings": {
        "original_max_position_embeddings": 77,
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    },
}


@pytest.mark.parametrize("case", GEMMA)
@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
def test_gemma3(case: str, layer_type: str) -> None:
    raw = {**SMALL, "head_dim": 16, "layer_types": ["full_attention", "sliding_attention"], **GEMMA[case]}
    theirs = Gemma3RotaryEmbedding(Gemma3TextConfig(**copy.deepcopy(raw)))
    ours = rope_from_config(raw, 16, layer_type=layer_type).rotary
    assert ours is not None
    theirs_frequencies = getattr(theirs, f"{layer_type}_inv_freq").double().numpy()
    np.testing.assert_allclose(ours.frequencies(), theirs_frequencies, rtol=3e-6)
    assert ours.attention_factor == pytest.approx(getattr(theirs, f"{layer_type}_attention_scaling"), rel=1e-12)


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize(
    "said",
    [
        {"global_rope_theta": 1.6e5, "local_rope_theta": 1e4},
        {
            "global_rope_theta": 1.6e5,
            "local_rope_theta": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        },
    ],
)
def test_modernbert(said: dict[str, Any], layer_type: str) -> None:
    raw = {**SMALL, **said}
    raw.pop("num_key_value_heads")
    theirs = ModernBertRotaryEmbedding(ModernBertConfig(**copy.deepcopy(raw)))
    ours = rope_from_config(raw, 16, layer_type=layer_type).rotary
    assert ours is not None
    theirs_frequencies = getattr(theirs, f"{layer_type}_inv_freq").double().numpy()
    np.testing.assert_allclose(ours.frequencies(), theirs_frequencies, rtol=3e-6)


@pytest.mark.parametrize("rotary_dim", [8, 16])
def test_gptj(rotary_dim: int) -> None:
    raw = {"n_embd": 64, "n_head": 4, "n_positions": 128, "rotary_dim": rotary_dim}
    attention = GPTJAttention(GPTJConfig(**raw), layer_idx=0)
    ours = rope_from_config(raw, 16, pairing="interleaved").rotary
    assert ours is not None
    theirs_sin = attention.embed_positions[:, : attention.embed_positions.shape[1] // 2]
    np.testing.assert_allclose(np.sin(ours.frequencies()), theirs_sin[1].numpy(), rtol=1e-5)


def test_an_odd_number_of_channels_is_rounded_up_as_theirs_is() -> None:
    config = LlamaConfig(
        **{**SMALL, "head_dim": 20},
        rope_parameters={
            "rope_type": "linear",
            "rope_theta": 1e4,
            "factor": 2.0,
            "partial_rotary_factor": 0.25,
        },
    )
    theirs, _ = ROPE_INIT_FUNCTIONS["linear"](config)
    raw = {**SMALL, "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    raw["rope_scaling"] = {"type": "linear", "factor": 2.0}
    ours = rope_from_config(raw, 20).rotary
    assert ours is not None
    assert len(theirs) == 3
    np.testing.assert_allclose(ours.frequencies(), theirs.double().numpy(), rtol=3e-6)
