"""A trained model back from its files, as the torch module that wrote them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from toposcope.checkpoints.families.lab import MODEL_TYPE
from toposcope.errors import BadConfig, BadFile, NotFound
from toposcope.lab.export import CONFIG, WEIGHTS
from toposcope.lab.model import ModelConfig, Transformer
from toposcope.lab.quirks import Quirks


def load_model(directory: str | Path) -> Transformer:
    """The model in a directory that `export` wrote (or in its 'model' folder), in evaluation mode."""
    place = Path(directory)
    if not (place / CONFIG).exists() and (place / "model" / CONFIG).exists():
        place = place / "model"
    for name in (CONFIG, WEIGHTS):
        if not (place / name).exists():
            raise NotFound(f"{place} holds no {name}: it is no model of the lab. 'toposcope train' makes one.")
    model = Transformer(load_config(place))
    try:
        model.load_state_dict(load_file(place / WEIGHTS))
    except (SafetensorError, RuntimeError) as error:
        raise BadFile(f"{place / WEIGHTS} does not hold the weights that {CONFIG} describes: {error}") from error
    return model.eval()


def load_config(directory: Path) -> ModelConfig:
    """The configuration of an exported model."""
    path = directory / CONFIG
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["model_type"] != MODEL_TYPE:
            raise BadConfig(f"{path} describes a '{data['model_type']}', not a model of the lab.")
        own = data["lab"]
        return ModelConfig(
            vocabulary=data["vocab_size"],
            classes=own["classes"],
            length=data["max_position_embeddings"],
            encoding=own["encoding"],
            reads=own["reads"],
            width=data["hidden_size"],
            layers=data["num_hidden_layers"],
            heads=data["num_attention_heads"],
            kv_heads=own["kv_heads"],
            head_dim=own["head_dim"],
            ff=data["intermediate_size"],
            causal=data["causal"],
            dropout=own["dropout"],
            seed=own["seed"],
            quirks=Quirks(**data["quirks"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadConfig(f"{path} does not describe a model of the lab ({error!r}).") from error
