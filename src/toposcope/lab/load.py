"""A trained model back from its files, as the torch module that wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as from_bytes

from toposcope.checkpoints.families.lab import MODEL_TYPE
from toposcope.core.errors import BadConfig, BadFile, NotFound
from toposcope.core.untrusted import SAVED, read_bytes, read_object, require_inside
from toposcope.lab.export import CONFIG, WEIGHTS
from toposcope.lab.model import ModelConfig, Transformer
from toposcope.lab.quirks import Quirks
from toposcope.lab.settings import LATER

LARGEST = 1 << 32  # numbers, of a model whose weights are elsewhere
HARMLESS = 1 << 22  # numbers that may be made of any file; its weights are looked at later
LONGEST = 1 << 17  # positions; tasks have some thousands


def load_model(directory: str | Path) -> Transformer:
    """The model in a directory that `export` wrote (or in its 'model' folder), in evaluation mode."""
    place = Path(directory)
    if not (place / CONFIG).exists() and (place / "model" / CONFIG).exists():
        require_inside(place / "model", place)
        place = place / "model"
    for name in (CONFIG, WEIGHTS):
        if not (place / name).exists():
            raise NotFound(f"{place} holds no {name}: it is no model of the lab. 'toposcope train' makes one.")
    model = Transformer(load_config(place))
    content = read_bytes(place / WEIGHTS, most=SAVED, inside=place)
    try:
        model.load_state_dict(from_bytes(content))
    except (SafetensorError, RuntimeError) as error:
        raise BadFile(f"{place / WEIGHTS} does not hold the weights that {CONFIG} describes: {error}") from error
    return model.eval()


def load_config(directory: Path) -> ModelConfig:
    """The configuration of an exported model."""
    path = directory / CONFIG
    data = read_object(path, BadConfig, inside=directory)
    try:
        if data["model_type"] != MODEL_TYPE:
            raise BadConfig(f"{path} describes a '{data['model_type']}', not a model of the lab.")
        own = data["lab"]
        _refuse_giants(data, own, directory)
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
            **{name: own.get(name, usual) for name, usual in LATER.items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadConfig(f"{path} does not describe a model of the lab ({error!r}).") from error


def _refuse_giants(data: Mapping[str, Any], own: Mapping[str, Any], directory: Path) -> None:
    """Complain about sizes that the weights beside them cannot have, before anything of that size is made."""
    weights = directory / WEIGHTS
    room = max(weights.stat().st_size // 4, HARMLESS) if weights.exists() else LARGEST  # numbers of four bytes
    sizes = {name: data[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")}
    sizes |= {"num_attention_heads": data["num_attention_heads"], "classes": own["classes"]}
    sizes |= {name: own[name] for name in ("kv_heads", "head_dim") if own[name] is not None}
    sizes |= {name: own[name] for name in ("loops", "latent_rank") if own.get(name) is not None}
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= room:
            raise BadConfig(f"{directory / CONFIG} says that {name} is {value!r:.40}, which its weights cannot have.")
    wide, layers = sizes["hidden_size"], sizes["num_hidden_layers"]
    if wide * max(sizes["vocab_size"], layers * sizes["intermediate_size"]) > room:
        raise BadConfig(f"{directory / CONFIG} describes a larger model than {WEIGHTS} holds.")
    if not isinstance(own["seed"], int) or not 0 <= own["seed"] < 2**63:
        raise BadConfig(f"{directory / CONFIG} says that its seed is {own['seed']!r:.40}; expected a whole number.")
    length = data["max_position_embeddings"]
    if not isinstance(length, int) or not 0 < length <= LONGEST:
        raise BadConfig(f"{directory / CONFIG} says that its length is {length!r:.40}; expected 1 to {LONGEST}.")
