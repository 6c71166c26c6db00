"""CLIP: a causal text tower and an image tower, both pre-norm with learned positions; also either one alone."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, find_root, learned_table
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.families.vit import patch_positions
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec

TEXT = Table(
    family="clip_text",
    stack="text",
    defaults={"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8},
    grouped=False,
    eps_keys=("layer_norm_eps",),
    eps=1e-5,
    context=(),
    context_of_table=True,
    layer="encoder.layers.{}.",
    linear=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
    norm="layer",
    input_norm="layer_norm1",
    embedding="embeddings.token_embedding",
)
VISION = replace(
    TEXT,
    family="clip_vision",
    stack="vision",
    causal=False,
    defaults={"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    embedding=None,
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The towers the file holds, as the stacks "text" and "vision" (a classifier holds the image tower only)."""
    towers = []
    if _holds(source, "text") or not _holds(source, "vision"):
        towers.append(describe_text(_part(config, "text_config"), source))
    if _holds(source, "vision"):
        towers.append(describe_vision(_part(config, "vision_config"), source))
    layers = tuple(layer for tower in towers for layer in tower.layers)
    context = next((tower.context for tower in towers if tower.context), None)
    return ModelSpec("clip", layers, towers[0].embedding, context)


def describe_text(config: Config, source: TensorSource) -> ModelSpec:
    """The text tower alone."""
    draft = TEXT.draft(config, source, _root(source, "text"))
    return draft.spec(learned_table(source, f"{draft.root}embeddings.position_embedding.weight"))


def describe_vision(config: Config, source: TensorSource) -> ModelSpec:
    """The image tower alone."""
    draft = VISION.draft(config, source, _root(source, "vision"))
    return draft.spec(patch_positions(source, f"{draft.root}embeddings.position_embedding.weight", "the class token"))


def _holds(source: TensorSource, tower: str) -> bool:
    return any(name.endswith(f"{tower}_model.{TEXT.first}") for name in source.names())


def _root(source: TensorSource, tower: str) -> str:
    """The prefix of a tower's tensors; a tower saved alone may have none."""
    if _holds(source, tower):
        return find_root(source, f"{tower}_model.{TEXT.first}") + f"{tower}_model."
    return find_root(source, TEXT.first)


def _part(config: Config, key: str) -> Config:
    """A tower's settings. Files of 2022 repeat them under '..._dict', which then counts, and often leave some out."""
    chosen = config.part(f"{key}_dict") if config.get(f"{key}_dict") else config.part(key)
    return chosen.updated(model_type=key)


FAMILIES = (
    Family("clip", ("clip",), describe, "CLIP: causal text tower and image tower, learned positions"),
    Family("clip_text", ("clip_text_model",), describe_text, "CLIP's text tower alone"),
    Family("clip_vision", ("clip_vision_model",), describe_vision, "CLIP's image tower alone"),
)
