"""Sound models as directories that a fault can be planted in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors.numpy import load_file, save_file

import toposcope
from tests.planted.faults import MINILM, SMOLLM2, Config, Fault, Tensors
from toposcope.checkpoints.view import Model
from toposcope.core.errors import ToposcopeError

Outcome = Literal["found", "cannot tell", "missed"]


@dataclass(frozen=True)
class Planted:
    """What `check` made of a fault: found (and as what), left open, or called in order."""

    outcome: Outcome
    as_what: str


def written(name: str, directory: Path) -> Path:
    """The sound model of that name as a directory with config.json and model.safetensors."""
    place = directory / name
    if not (place / "config.json").exists():
        with toposcope.load(name) as model:
            config, tensors = {SMOLLM2: _llama, MINILM: _as_it_is}[name](model)
        write(place, config, tensors)
    return place


def write(place: Path, config: Config, tensors: Tensors) -> None:
    place.mkdir(parents=True, exist_ok=True)
    kept = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}
    save_file(kept, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(config))


def plant(fault: Fault, sound: Path, place: Path) -> Path:
    """A copy of the sound model with the fault in it; weights that stay as they are are linked."""
    config, tensors = json.loads((sound / "config.json").read_text()), {}
    if fault.in_weights:
        tensors = load_file(sound / "model.safetensors")
    fault.plant(config, tensors)
    if fault.in_weights:
        write(place, config, tensors)
    else:
        place.mkdir(parents=True, exist_ok=True)
        (place / "model.safetensors").hardlink_to(sound / "model.safetensors")
        (place / "config.json").write_text(json.dumps(config))
    return place


def judged(place: Path, expected: tuple[str, ...]) -> Planted:
    """What `check` says of a model with a fault: sound, it raises nothing, so whatever is raised is the fault."""
    try:
        result = toposcope.check(place)
    except ToposcopeError as error:
        return Planted("found" if "refused" in expected else "missed", f"refused: {type(error).__name__}")
    about = [finding for finding in result.findings if finding.id in (*expected, "pairing")]
    named = [each for each in about if each.id in expected and each.status in ("fault", "warning")]
    if named:
        return Planted("found", f"{named[0].status} {named[0].id}")
    others = [each for each in result.findings if each.status in ("fault", "warning")]
    if others:
        return Planted("found", f"{others[0].status} {others[0].id}")
    left_open = [each for each in about if each.status == "cannot_tell"]
    return Planted("cannot tell", left_open[0].id) if left_open else Planted("missed", "ok")


def _as_it_is(model: Model) -> tuple[Config, Tensors]:
    names = [name for name in model.source.names() if model.source.info(name).dtype.upper() == "F32"]
    return dict(model.config), {name: model.source.read(name) for name in names}


def _llama(model: Model) -> tuple[Config, Tensors]:
    """A model that is read as a Llama, in the files of transformers."""
    first = model.layers[0]
    config = {
        "model_type": "llama",
        "hidden_size": first.spec.width,
        "num_attention_heads": first.spec.heads,
        "num_key_value_heads": first.spec.kv_heads,
        "num_hidden_layers": len(model.layers),
        "max_position_embeddings": model.spec.context,
        "rope_theta": first.encoding.parameters["base"],
        "rms_norm_eps": 1e-5,
        "vocab_size": 16,
    }
    tensors: Tensors = {"model.embed_tokens.weight": np.random.default_rng(0).standard_normal((16, first.spec.width))}
    for layer in model.layers:
        w, at = layer.weights, f"model.layers.{layer.number}."
        tensors[f"{at}self_attn.q_proj.weight"] = w.q_HRD.reshape(-1, first.spec.width)
        tensors[f"{at}self_attn.k_proj.weight"] = w.k_GRD.reshape(-1, first.spec.width)
        tensors[f"{at}self_attn.v_proj.weight"] = w.v_GVD.reshape(-1, first.spec.width)
        tensors[f"{at}self_attn.o_proj.weight"] = w.o_HDV.transpose(1, 0, 2).reshape(first.spec.width, -1)
        assert w.input_norm is not None
        assert w.input_norm.gain is not None
        tensors[f"{at}input_layernorm.weight"] = w.input_norm.gain
    return config, tensors
