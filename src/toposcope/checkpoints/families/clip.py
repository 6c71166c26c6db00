"""CLIP: a causal text tower and an image tower, both pre-norm with learned positions; also either one alone."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, find_root, learned_table
from toposcope.checkpoints.families.vit import patch_positions
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import Encoding

TEXT = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8}
VISION = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
QUERY = "encoder.layers.0.self_attn.q_proj.weight"


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The towers the file holds, as the stacks "text" and "vision" (a classifier holds the image tower only)."""
    layers: tuple[LayerSpec, ...] = ()
    embedding = context = None
    if _holds(source, "text") or not _holds(source, "vision"):
        root = _root(source, "text")
        layers, context = _text(_part(config, "text_config", TEXT), source, root)
        embedding = f"{root}embeddings.token_embedding.weight"
    if _holds(source, "vision"):
        seen, places = _vision(_part(config, "vision_config", VISION), source, _root(source, "vision"))
        layers, context = layers + seen, context or places
    return ModelSpec("clip", layers, embedding, context)


def describe_text(config: Config, source: TensorSource) -> ModelSpec:
    """The text tower alone."""
    root = _root(source, "text")
    layers, context = _text(config.with_defaults(**TEXT), source, root)
    return ModelSpec("clip_text", layers, f"{root}embeddings.token_embedding.weight", context)


def describe_vision(config: Config, source: TensorSource) -> ModelSpec:
    """The image tower alone."""
    layers, context = _vision(config.with_defaults(**VISION), source, _root(source, "vision"))
    return ModelSpec("clip_vision", layers, None, context)


def _holds(source: TensorSource, tower: str) -> bool:
    return any(name.endswith(f"{tower}_model.{QUERY}") for name in source.names())


def _root(source: TensorSource, tower: str) -> str:
    """The prefix of a tower's tensors; a tower saved alone may have none."""
    if _holds(source, tower):
        return find_root(source, f"{tower}_model.{QUERY}") + f"{tower}_model."
    return find_root(source, QUERY)


def _part(config: Config, key: str, defaults: dict[str, int]) -> Config:
    """A tower's settings. Files of 2022 repeat them under '..._dict', which then counts, and often leave some out."""
    chosen = config.part(f"{key}_dict") if config.get(f"{key}_dict") else config.part(key)
    return chosen.updated(model_type=key).with_defaults(**defaults)


def _text(config: Config, source: TensorSource, root: str) -> tuple[tuple[LayerSpec, ...], int | None]:
    encoding = learned_table(source, f"{root}embeddings.position_embedding.weight")
    return _tower(config, root, "text", encoding, causal=True)


def _vision(config: Config, source: TensorSource, root: str) -> tuple[tuple[LayerSpec, ...], int | None]:
    encoding = patch_positions(source, f"{root}embeddings.position_embedding.weight", "the class token")
    return _tower(config, root, "vision", encoding, causal=False)


def _tower(
    config: Config, root: str, stack: str, encoding: Encoding, *, causal: bool
) -> tuple[tuple[LayerSpec, ...], int | None]:
    sizes = Sizes.of(config)
    eps = config.number("layer_norm_eps", default=1e-5)

    def layer(i: int) -> LayerSpec:
        at = f"{root}encoder.layers.{i}."
        return LayerSpec(
            stack=stack,
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=causal,
            encoding=encoding,
            q=Linear.at(f"{at}self_attn.q_proj"),
            k=Linear.at(f"{at}self_attn.k_proj"),
            v=Linear.at(f"{at}self_attn.v_proj"),
            o=Linear.at(f"{at}self_attn.out_proj"),
            input_norm=NormSpec.at("layer", f"{at}layer_norm1", eps),
        )

    return tuple(layer(i) for i in range(sizes.layers)), None if encoding.input is None else encoding.input.length


FAMILIES = (
    Family("clip", ("clip",), describe, "CLIP: causal text tower and image tower, learned positions"),
    Family("clip_text", ("clip_text_model",), describe_text, "CLIP's text tower alone"),
    Family("clip_vision", ("clip_vision_model",), describe_vision, "CLIP's image tower alone"),
)
