"""Tiny models of transformers at random, with the rotary settings that a plant or a control asks for."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from tests.architectures.builder import randomise
from tests.architectures.settings import SETTINGS
from tests.architectures.shrink import REMOVED, merged, small

HEADS, LAYERS, VOCABULARY = 4, 4, 99
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_IMAGE_TEXT = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")


def tiny(
    kind: str,
    *,
    base: float | None = 1e4,
    width: int = 16,
    context: int = 256,
    scaling: dict[str, Any] | None = None,
    seed: int = 0,
    attention: str = "sdpa",
    **more: Any,
) -> nn.Module:
    """A model of this type in float32; with `base` None the type's own rotary settings stay, `more` are others."""
    import transformers
    from transformers import CONFIG_MAPPING

    transformers.utils.logging.set_verbosity_error()
    config_class = CONFIG_MAPPING[kind]
    settings = merged(small(config_class), SETTINGS.get(kind, {}))
    text = "text_config" in settings and kind in _IMAGE_TEXT
    inner = settings["text_config"] if text else settings
    inner.update({key: HEADS * width for key in ("hidden_size", "n_embd", "d_model") if key in inner})
    inner.update({key: context for key in ("max_position_embeddings", "n_positions") if key in inner})
    if "head_dim" in inner:
        inner["head_dim"] = width
    if "qk_rope_head_dim" in inner:  # latent attention: as many keys as heads; `width` is that of the rotated part
        inner.update({"qk_rope_head_dim": width, "num_key_value_heads": HEADS, "hidden_size": 64})
        inner.pop("head_dim", None)
    if base is not None:
        inner["rope_parameters"] = {"rope_type": "default", "rope_theta": base, **(scaling or {})}
    for key, value in more.items():
        if value is REMOVED:
            inner.pop(key, None)
        else:
            inner[key] = value
    if text and "vision_config" in settings and "out_hidden_size" in settings["vision_config"]:
        settings["vision_config"]["out_hidden_size"] = inner["hidden_size"]
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)  # some parameters are drawn around the values they begin with
        config = config_class(**settings)
        made = _class(kind)
        known = attention == "eager" or getattr(made, "_supports_sdpa", False)
        model = made._from_config(config, attn_implementation=attention if known else "eager").float().eval()
    randomise(model, seed)
    return model


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model in another precision, as loading in it would leave it: what files do not store stays in float32."""
    stored = dict(model.state_dict(keep_vars=True))
    with torch.no_grad():
        for tensor in stored.values():
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
    for part in model.modules():
        settings = getattr(part, "config", None)
        if settings is not None:
            settings.dtype = dtype
    return model


def _class(kind: str) -> Any:
    import transformers
    from transformers.models.auto import modeling_auto as auto

    lists = (
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if kind in _IMAGE_TEXT else {},
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_MAPPING_NAMES,
    )
    name = next(each[kind] for each in lists if kind in each)
    return getattr(transformers, name if isinstance(name, str) else name[0])
