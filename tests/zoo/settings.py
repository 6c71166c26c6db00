"""What the tiny models of some types need beside small sizes: facts about these types, found by building them."""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
_ALTERNATING = [_SLIDING, _FULL]
_LINEAR = ["linear_attention", _FULL]
_MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
_GEMMA4 = dict(
    num_hidden_layers=6,
    layer_types=_ALTERNATING * 3,
    num_kv_shared_layers=2,
    head_dim=16,
    global_head_dim=32,
    num_global_key_value_heads=1,
)
_GEMMA3N = dict(
    num_hidden_layers=6,
    layer_types=_ALTERNATING * 3,
    num_kv_shared_layers=2,
    activation_sparsity_pattern=[0.0] * 6,
    laurel_rank=8,
    intermediate_size=[96] * 6,
)

# By model type; also for a nested configuration of that type.
SETTINGS: dict[str, dict[str, Any]] = {
    "albert": dict(embedding_size=16),
    "bailing_hybrid": dict(n_group=1, num_expert_group=1, topk_group=1),
    "bamba": dict(attn_layer_indices=[1, 3]),
    "codegen": dict(rotary_dim=8),
    "cohere_compass_text": dict(layer_types=_ALTERNATING * 2),
    "flaubert": dict(emb_dim=64),
    "gemma3n_text": _GEMMA3N,
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": {**_GEMMA4, "num_kv_shared_layers": 0, "attention_k_eq_v": True},
    "gpt_neo": dict(attention_types=[[["global", "local"], 2]], window_size=5),
    "gptj": dict(rotary_dim=8),
    "granitemoehybrid": dict(layer_types=["mamba", "attention"] * 2),
    "hunyuan_v1_dense": dict(head_dim=16),
    "hunyuan_v1_moe": dict(head_dim=16),
    "kimi_linear": dict(num_hidden_layers=4, layer_types=_LINEAR * 2),
    "lfm2_moe": dict(layer_types=["conv", _FULL] * 2, num_dense_layers=1),
    "llama4_text": dict(floor_scale=7),
    "mamba2": dict(num_heads=8, head_dim=16, n_groups=1),
    "ministral": dict(head_dim=16, layer_types=_ALTERNATING * 2),
    "qwen4_exp_text": dict(layer_types=_LINEAR * 2),
    "qwen2_vl_text": dict(rope_parameters=_MROPE),
    "qwen2_5_vl_text": dict(rope_parameters=_MROPE),
    "paddleocr_vl_text": dict(rope_parameters=_MROPE),
    "qwen2_5_omni_text": dict(rope_parameters=_MROPE),
    "qwen2_5_omni_thinker_text": dict(rope_parameters=_MROPE),
    "recurrent_gemma": dict(attention_window_size=5),
    "reformer": dict(is_decoder=True),
    "xlm": dict(emb_dim=64),
    "zamba2": dict(num_hidden_layers=4, layer_types=["mamba", "hybrid"] * 2, hybrid_layer_ids=[1, 3]),
    "zaya": dict(num_experts_per_tok=1),
}
