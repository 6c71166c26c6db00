"""A configuration of any class of transformers, made tiny: every size it knows by name is set to a small one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

WIDTH, HEADS, HEAD, LAYERS, CONTEXT, VOCABULARY, WINDOW = 64, 4, 16, 4, 64, 99, 5

SIZES: dict[str, Any] = {
    **dict.fromkeys(
        [
            "hidden_size",
            "n_embd",
            "d_model",
            "dim",
            "embed_dim",
            "embed_size",
            "word_embed_proj_dim",
            "embedding_size",
            "lm_head_dim",
        ],
        WIDTH,
    ),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers"], LAYERS),
    **dict.fromkeys(["encoder_layers", "decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth"], 3),
    **dict.fromkeys(
        [
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "num_encoder_attention_heads",
            "num_decoder_attention_heads",
            "swa_num_attention_heads",
        ],
        HEADS,
    ),
    **dict.fromkeys(["num_key_value_heads", "swa_num_key_value_heads"], 2),
    **dict.fromkeys(["head_dim", "d_kv", "attention_head_dim", "swa_head_dim", "swa_v_head_dim", "v_head_dim"], HEAD),
    **dict.fromkeys(
        [
            "intermediate_size",
            "ffn_dim",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "n_inner",
            "d_ff",
            "dim_ff",
            "hidden_dim",
            "ffn_hidden_size",
            "inner_dim",
            "intermediate_size_mlp",
        ],
        96,
    ),
    **dict.fromkeys(
        [
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "expert_ffn_hidden_size",
            "moe_layer_inter_size",
        ],
        32,
    ),
    **dict.fromkeys(["vocab_size", "text_vocab_size", "vocab_size_per_layer_input"], VOCABULARY),
    **dict.fromkeys(
        [
            "max_position_embeddings",
            "n_positions",
            "n_ctx",
            "max_seq_len",
            "max_source_positions",
            "max_target_positions",
            "max_seq_length",
            "original_max_position_embeddings",
        ],
        CONTEXT,
    ),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"], 4),
    **dict.fromkeys(
        [
            "num_experts_per_tok",
            "moe_k",
            "moe_topk",
            "moe_top_k",
            "top_k_experts",
            "num_experts_per_token",
            "zero_expert_num",
        ],
        2,
    ),
    **dict.fromkeys(["n_shared_experts", "num_shared_experts", "n_group", "topk_group"], 1),
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "type_vocab_size": 2},
    **{"sliding_window": WINDOW, "attention_window": 4, "local_attention": 4, "attention_chunk_size": 6},
    **{"q_lora_rank": 24, "kv_lora_rank": 16, "o_lora_rank": 16, "o_groups": 2},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 16},
    **{"global_head_dim": 32, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 8},
    **{"image_size": 16, "patch_size": 4, "num_channels": 3},
    **dict.fromkeys(["mamba_n_heads", "mamba_num_heads"], 8),
    **dict.fromkeys(["mamba_d_head", "mamba_head_dim", "mamba_headdim"], 16),
    **dict.fromkeys(["mamba_d_state", "ssm_state_size", "state_size"], 8),
    **dict.fromkeys(["mamba_n_groups", "mamba_ngroups"], 1),
    **{"mamba_dt_rank": 4, "n_mamba_heads": 2, "mamba_expand": 2, "conv_kernel": 4},
    **{
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
}

# Settings whose None means 'as another', 'worked out' or 'there is none': it stays.
_NONE_SAYS = frozenset(
    [
        "q_lora_rank",
        "sliding_window",
        "n_inner",
        "embedding_size",
        "head_dim",
        "original_max_position_embeddings",
        "attention_chunk_size",
        "mamba_dt_rank",
    ]
)


def small(cls: type) -> dict[str, Any]:
    """The arguments that make a tiny configuration of a class, nested ones included.

    Lists and words stay as they are, and so does a None that says something.
    """
    try:
        usual = cls()
    except Exception:  # noqa: BLE001 - of other people's classes: some cannot be made without arguments
        usual = None
    made = {key: size for key, size in SIZES.items() if key in _settings(cls, usual) and _free(usual, key)}
    for name in getattr(cls, "sub_configs", None) or {}:
        part = getattr(usual, name, None)
        if part is not None and not isinstance(part, dict):
            made[name] = {**small(type(part)), "model_type": part.model_type}
    rope = getattr(usual, "rope_parameters", None)
    if isinstance(rope, dict) and rope.get("mrope_section"):  # as many pairs as the tiny head has
        pairs = int(HEAD * (rope.get("partial_rotary_factor") or 1)) // 2
        made["rope_parameters"] = {**rope, "mrope_section": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]}
    return made


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The settings with changes, nested ones within nested ones; REMOVED takes a setting away."""
    out = deepcopy(base)
    for key, value in changes.items():
        if value is REMOVED:
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out


REMOVED = object()


def variants(base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings, and others to try where a class refuses them: other depths, widths and groups of heads."""
    latent = _everywhere(base, {"head_dim": REMOVED, "num_key_value_heads": HEADS}, having="qk_rope_head_dim")
    if latent != base:  # latent attention: as many keys as heads, and 'head_dim' is the rotary part
        yield latent
        yield _everywhere(base, {"head_dim": 8, "num_key_value_heads": HEADS}, having="qk_rope_head_dim")
    yield base
    yield _everywhere(base, {"head_dim": REMOVED}, having="head_dim")
    for layers in (2, 8):
        yield _deep(base, layers)
    yield {k: v for k, v in base.items() if not k.startswith(("mamba", "linear_", "conv_", "ssm"))}
    yield _everywhere(base, {"num_key_value_heads": HEADS}, having="num_key_value_heads")
    yield _everywhere(base, {"num_key_value_heads": HEADS, "head_dim": REMOVED}, having="num_key_value_heads")


def _everywhere(base: dict[str, Any], changes: dict[str, Any], *, having: str) -> dict[str, Any]:
    """The changes in the settings and in nested ones, wherever there is the key `having`."""
    nested = {k: _everywhere(v, changes, having=having) if isinstance(v, dict) else v for k, v in base.items()}
    return merged(nested, changes) if having in nested else nested


def _deep(base: dict[str, Any], layers: int) -> dict[str, Any]:
    counts = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    return {
        key: _deep(value, layers) if isinstance(value, dict) else layers if key in counts else value
        for key, value in base.items()
    }


def _settings(cls: type, usual: Any) -> set[str]:
    names = set() if usual is None else set(vars(usual))
    names |= set(inspect.signature(cls.__init__).parameters)
    for base in cls.__mro__:
        names |= set(getattr(base, "__annotations__", {}))
    return names - set(getattr(cls, "attribute_map", None) or {})


def _free(usual: Any, key: str) -> bool:
    value = vars(usual).get(key, getattr(type(usual), key, 0)) if usual is not None else 0
    if key == "attention_window":  # Longformer's and LED's list of windows, one number for all layers
        return True
    return key not in _NONE_SAYS if value is None else not isinstance(value, list | tuple | str | dict)
