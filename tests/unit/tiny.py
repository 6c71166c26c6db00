"""Small checkpoints written without torch, for tests that need a real directory on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "vocab_size": 32,
}


def tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors of a Llama with the given configuration."""
    random = np.random.default_rng(seed)
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim, groups = width // heads, config["num_key_value_heads"]
    rows = {"q": heads * head_dim, "k": groups * head_dim, "v": groups * head_dim}
    made = {"model.embed_tokens.weight": random.standard_normal((config["vocab_size"], width))}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, size in rows.items():
            made[f"{at}self_attn.{name}_proj.weight"] = random.standard_normal((size, width))
        made[f"{at}self_attn.o_proj.weight"] = random.standard_normal((width, heads * head_dim))
        made[f"{at}input_layernorm.weight"] = 1 + 0.2 * random.standard_normal(width)
    return {name: value.astype(np.float32) for name, value in made.items()}


def write_llama(directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A tiny Llama in Hugging Face layout; `changes` replace configuration entries."""
    config = {**CONFIG, **changes}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors(config, seed), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_adapter(directory: Path, factors: Mapping[str, np.ndarray], **settings: Any) -> Path:
    """An adapter as PEFT saves it; `factors` are its tensors by their full names."""
    directory.mkdir(parents=True, exist_ok=True)
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "base_model_name_or_path": "org/base", **settings}
    (directory / "adapter_config.json").write_text(json.dumps(said))
    save_file(dict(factors), directory / "adapter_model.safetensors")
    return directory
