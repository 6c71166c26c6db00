"""Make the two checkpoints to try `toposcope check` on: python examples/make_tiny_yarn.py [DIRECTORY]

tiny_yarn        a Llama of 12,000 parameters with YaRN x4 in force
tiny_yarn_lost   the same weights; the scaling is written under a key that transformers does not read

Nothing is trained or fetched: the weights are drawn from a seed, and queries and keys are given the rotary pairs that
training leaves in a causal model, so that `check` has something to read off them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WIDTH, LAYERS, HEADS, CHANNELS, VOCABULARY = 16, 4, 2, 16, 64
TURNING = 5  # channel pairs that turn by a radian or more within the context: training needs no others
YARN = {"factor": 4.0, "original_max_position_embeddings": 2048, "rope_theta": 500000.0}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": CHANNELS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": True,
    "dtype": "float16",
}
CONFIGS = {
    "tiny_yarn": {**CONFIG, "rope_parameters": {"rope_type": "yarn", **YARN}},
    "tiny_yarn_lost": {**CONFIG, "rope_parameters": {"scaling_type": "yarn", **YARN}},  # the name is rope_type
}


def weights() -> dict[str, np.ndarray]:
    """The tensors of both, by the names that a Llama has in transformers."""
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return random.standard_normal(shape) / WIDTH**0.5

    def gains() -> np.ndarray:
        return random.uniform(0.8, 1.2, WIDTH)

    tensors = {"model.embed_tokens.weight": drawn(VOCABULARY, WIDTH), "model.norm.weight": gains()}
    first, second = np.arange(TURNING), np.arange(TURNING) + CHANNELS // 2  # pair i is (i, i + 8)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        query, key, value, output = (drawn(HEADS, CHANNELS, WIDTH) for _ in range(4))
        key[:, second] += query[:, first]  # a quarter of a turn behind its query: what was before is seen
        key[:, first] -= query[:, second]
        for name, rows in (("q", query), ("k", key), ("v", value), ("o", output)):
            flat = rows.reshape(HEADS * CHANNELS, WIDTH)
            tensors[f"{at}self_attn.{name}_proj.weight"] = flat.T if name == "o" else flat
        for name in ("gate", "up", "down"):
            tensors[f"{at}mlp.{name}_proj.weight"] = drawn(WIDTH, WIDTH)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = gains()
    return {name: np.ascontiguousarray(each, dtype=np.float16) for name, each in tensors.items()}


def write(place: Path) -> None:
    """Both directories, in this one."""
    for name, config in CONFIGS.items():
        (place / name).mkdir(parents=True, exist_ok=True)
        save_file(weights(), place / name / "model.safetensors", metadata={"format": "pt"})
        (place / name / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
