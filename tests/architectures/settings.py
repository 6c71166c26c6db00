"""What the tiny models of some types need beside small sizes: facts about these types, found by building them."""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL = "sliding_attention", "full_attention"
_ALTERNATING = [_SLIDING, _FULL]
_LINEAR = ["linear_attention", _FULL]
_MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
_GROWING = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": _ALTERNATING * 3,
    "num_kv_shared_layers": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
}
_GEMMA3N = {
    "num_hidden_layers": 6,
    "layer_types": _ALTERNATING * 3,
    "num_kv_shared_layers": 2,
    "activation_sparsity_pattern": [0.0] * 6,
    "laurel_rank": 8,
    "intermediate_size": [96] * 6,
}

# By model type; also for a nested configuration of that type.
SETTINGS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "bailing_hybrid": {"n_group": 1, "num_expert_group": 1, "topk_group": 1},
    "bamba": {"attn_layer_indices": [1, 3]},
    "codegen": {"rotary_dim": 8},
    "flaubert": {"emb_dim": 64},
    "gemma3n_text": _GEMMA3N,
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": {**_GEMMA4, "num_kv_shared_layers": 0, "attention_k_eq_v": True},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 5},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "falcon_h1": {"key_multiplier": 0.7, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.9},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"num_hidden_layers": 4, "layer_types": _LINEAR * 2},
    "lfm2_moe": {"layer_types": ["conv", _FULL] * 2, "num_dense_layers": 1},
    "llama4_text": {"floor_scale": 7},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "ministral3": {"rope_parameters": _GROWING},
    "mistral4": {"rope_parameters": {**_GROWING, "partial_rotary_factor": 0.5}},
    "gemma2": {"attn_logit_softcapping": 2.0},  # so low that it counts
    "glm4_moe": {"use_qk_norm": True},
    "vaultgemma": {"attn_logit_softcapping": 2.0},
    "ministral": {"head_dim": 16, "layer_types": _ALTERNATING * 2},
    "qwen2_vl_text": {"rope_parameters": _MROPE},
    "qwen2_5_vl_text": {"rope_parameters": _MROPE},
    "paddleocr_vl_text": {"rope_parameters": _MROPE},
    "qwen2_5_omni_text": {"rope_parameters": _MROPE},
    "qwen2_5_omni_thinker_text": {"rope_parameters": _MROPE},
    "recurrent_gemma": {"attention_window_size": 5},
    "xlm": {"emb_dim": 64},
    "zamba2": {"num_hidden_layers": 4, "layer_types": ["mamba", "hybrid"] * 2, "hybrid_layer_ids": [1, 3]},
    "zaya": {"num_experts_per_tok": 1},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"] * 2},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0, "kv_n_heads": 2}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4_unified_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "luke": {"entity_vocab_size": 50},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16, "visual_embed": False},
    "lilt": {"hidden_size": 96},
    "sam": {"vision_config": {"output_channels": 64}},
    "glm4v_text": {"rope_parameters": _MROPE},
    "glm4v_moe_text": {"rope_parameters": {**_MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}},
    "glm_ocr_text": {"rope_parameters": _MROPE},
    "glmga_text": {"rope_parameters": _MROPE},
    "ernie4_5_vl_moe_text": {"rope_parameters": {**_MROPE, "mrope_section": [2, 2, 4]}},
    "blip-2": {"image_token_index": 95, "num_query_tokens": 4},
    "chameleon": {"vocabulary_map": {"<image>": 95, "IMGIMGA": 96}},
    "emu3": {"vocabulary_map": {"<image>": 95, "<|extra_200|>": 96, "<|visual token 000000|>": 97}},
    "hunyuan_vl_text": {"head_dim": 16},
    "granite4_vision": {"deepstack_layer_map": [[0, 1]], "spatial_target_layers": [1]},
    "glm5_next_text": {"num_key_value_heads": 4, "qk_rope_head_dim": 0},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [],
    },
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, -2], "text_hidden_size": 64}},
    "muse_spark": {"audio_config": {"out_hidden_size": 64}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "step3p7_text": {"sliding_window": 5},
    "janus": {"vq_config": {"num_embeddings": 50, "base_channels": 32}, "vision_config": {"projection_dim": 64}},
    "florence2": {"vision_config": {"embed_dim": [16, 16, 32, 32], "projection_dim": 64}},
    "cohere_compass_text": {
        "layer_types": _ALTERNATING * 2,
        "rope_parameters": {
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            _FULL: {"rope_type": "default", "rope_theta": 1e5},
        },
    },
}
