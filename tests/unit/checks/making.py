"""Tiny checkpoints on disk with a planted property, for the tests of `check_model`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Tensors = dict[str, np.ndarray]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "vocab_size": 16,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "vocab_size": 16,
}


def write(directory: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()},
              directory / "model.safetensors")  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def llama(directory: Path, change: Callable[[Tensors], None] | None = None, **settings: Any) -> Path:
    """A random Llama; `change` edits its tensors in place, `settings` its configuration."""
    config = {**LLAMA, **settings}
    random, width = np.random.default_rng(0), config["hidden_size"]
    tensors: Tensors = {"model.embed_tokens.weight": random.standard_normal((config["vocab_size"], width))}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for part in "qkvo":
            tensors[f"{at}self_attn.{part}_proj.weight"] = random.standard_normal((width, width)) / width**0.5
        tensors[f"{at}input_layernorm.weight"] = np.ones(width)
    if change is not None:
        change(tensors)
    return write(directory, config, tensors)


def trained_pairs(order: str, layers: tuple[int, ...] = (0, 1, 2)) -> Callable[[Tensors], None]:
    """Give the weights the sine part that training gives to true pairs, in half-split or interleaved order."""

    def change(tensors: Tensors) -> None:
        for i in layers:
            q, k = (tensors[f"model.layers.{i}.self_attn.{part}_proj.weight"].reshape(2, 32, 64) for part in "qk")
            first = np.arange(16) if order == "half" else np.arange(0, 32, 2)
            second = np.arange(16, 32) if order == "half" else np.arange(1, 32, 2)
            k[:, second] += q[:, first]
            k[:, first] -= q[:, second]

    return change


def bert(
    directory: Path, table: np.ndarray, change: Callable[[Tensors], None] | None = None, **settings: Any
) -> Path:
    """A random BERT with the given position table."""
    config = {**BERT, "max_position_embeddings": len(table), **settings}
    random, width = np.random.default_rng(1), config["hidden_size"]
    tensors: Tensors = {
        "embeddings.word_embeddings.weight": random.standard_normal((16, width)),
        "embeddings.position_embeddings.weight": table,
    }
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}.attention."
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            tensors[f"{at}{part}.weight"] = random.standard_normal((width, width)) / width**0.5
            tensors[f"{at}{part}.bias"] = np.zeros(width)
        tensors[f"{at}output.LayerNorm.weight"] = np.ones(width)
        tensors[f"{at}output.LayerNorm.bias"] = np.zeros(width)
    if change is not None:
        change(tensors)
    return write(directory, config, tensors)


def smooth_table(rows: int = 128, width: int = 32, seed: int = 0, std: float = 0.02) -> np.ndarray:
    """A table as training leaves it: neighbours alike, with noise, at the size of a fresh one."""
    random = np.random.default_rng(seed)
    walk = np.cumsum(random.standard_normal((rows + 8, width)), axis=0)
    smooth = walk[8:] - walk[:-8] + random.standard_normal((rows, width))
    return smooth / smooth.std() * std


def random_table(rows: int = 128, width: int = 32, seed: int = 0, std: float = 0.02) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)) * std
