"""A trained model as files that every command of Toposcope reads: config.json and model.safetensors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_bytes

from toposcope._version import __version__
from toposcope.checkpoints.families.lab import MODEL_TYPE
from toposcope.core.files import make_directory, write_bytes, write_json
from toposcope.lab.model import EPS, ModelConfig, Transformer
from toposcope.lab.settings import LATER

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def export(model: Transformer, directory: str | Path, *, task: str | None = None, run: str | None = None) -> Path:
    """Write the model's directory: weights first, then the configuration that says how to read them."""
    place = make_directory(directory)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_bytes(place / WEIGHTS, to_bytes(tensors, metadata={"format": "pt"}))
    write_json(place / CONFIG, {**description(model.config), "task": task, "run": run, "toposcope": __version__})
    return place


def description(config: ModelConfig) -> dict[str, Any]:
    """The configuration as config.json holds it: enough to rebuild the module, and to read it without torch."""
    content, turning = config.query_widths
    latent = {
        "rank": config.rank,
        "head_dim": content + turning,
        "value_dim": config.value_dim,
        "shared_key": turning if config.shared_key else 0,
    }
    return {
        "model_type": MODEL_TYPE,
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.value_dim,
        "intermediate_size": config.ff,
        "max_position_embeddings": config.length,
        "layer_norm_eps": EPS,
        "causal": config.causal,
        "latent": latent if config.latent else None,
        "input_encoding": None if config.added is None else str(config.added),
        "layer_encodings": [
            [{"encoding": str(part.spec), "heads": part.heads} for part in config.acting(i)]
            for i in range(config.layers)
        ],
        "quirks": asdict(config.quirks),
        "lab": {
            "encoding": config.encoding,
            "classes": config.classes,
            "reads": config.reads,
            "dropout": config.dropout,
            "seed": config.seed,
            "kv_heads": config.kv_heads,
            "head_dim": config.head_dim,
            **{name: getattr(config, name) for name, usual in LATER.items() if getattr(config, name) != usual},
        },
    }
