"""CLIP: a causal text tower and an image tower, both pre-norm with learned positions; also either one alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.bert import describe as describe_bert
from toposcope.checkpoints.families.common import Config, find_root, learned_table
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.families.vit import patch_positions
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec, Skipped

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


# SigLIP: words see one another in both directions; patches have no class token before them
SIGLIP_TEXT = replace(TEXT, family="siglip_text", causal=False, eps=1e-6)
SIGLIP_VISION = replace(VISION, family="siglip_vision", eps=1e-6)
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}


def describe_siglip(family: str, config: Config, source: TensorSource) -> ModelSpec:
    """SigLIP's towers; attention that pools the patches is skipped."""
    towers = []
    if _holds(source, "text"):
        text = SIGLIP_TEXT.draft(_part(config, "text_config").with_defaults(**BASE), source, _root(source, "text"))
        towers.append(text.spec(learned_table(source, f"{text.root}embeddings.position_embedding.weight")))
    if _holds(source, "vision") or not towers:
        inner = _part(config, "vision_config") if config.get("vision_config") else config
        vision = SIGLIP_VISION.draft(inner.with_defaults(**BASE), source, _root(source, "vision"))
        table = f"{vision.root}embeddings.position_embedding.weight"
        towers.append(vision.spec(patch_positions(source, table, "the first patch")))
    pooling = tuple(sorted(name for name in source.names() if ".head.attention." in f".{name}"))
    why = "one learned query reads all patches: position has no part in it"
    skipped = (Skipped("the pooling head", why, pooling),) if pooling else ()
    layers = tuple(layer for tower in towers for layer in tower.layers)
    return ModelSpec(family, layers, towers[0].embedding, towers[0].context, skipped)


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


def describe_chinese(config: Config, source: TensorSource) -> ModelSpec:
    """Chinese CLIP: a BERT for texts beside CLIP's image tower."""
    text = describe_bert(_part(config, "text_config").updated(model_type="bert"), source)
    vision = describe_vision(_part(config, "vision_config"), source)
    return ModelSpec("chinese_clip", (*text.layers, *vision.layers), text.embedding, text.context)


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
    Family(
        "siglip",
        ("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"),
        partial(describe_siglip, "siglip"),
        "SigLIP 1 and 2: both towers see in both directions",
    ),
    Family("clip", ("clip", "metaclip_2"), describe, "CLIP: causal text tower and image tower, learned positions"),
    Family("chinese_clip", ("chinese_clip",), describe_chinese, "Chinese CLIP: a BERT and an image tower"),
    Family("clip_text", ("clip_text_model",), describe_text, "CLIP's text tower alone"),
    Family("clip_vision", ("clip_vision_model",), describe_vision, "CLIP's image tower alone"),
)
