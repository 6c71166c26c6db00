"""T5 and its relatives: an encoder and a decoder, bucketed relative biases, logits that are not scaled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.core.errors import MissingTensor
from toposcope.encodings import NONE, Encoding, t5

_QUERY = "block.0.layer.0.SelfAttention.q.weight"


def describe(config: Config, source: TensorSource, *, family: str = "t5") -> ModelSpec:
    """Encoder layers, then for each decoder layer its self- and its cross-attention; either stack may be missing.

    The bias belongs to the first layer of a stack and serves all of them, unless every layer has its own (UMT5).
    """
    root = find_root(source, f"encoder.{_QUERY}", f"decoder.{_QUERY}")
    depth_and_heads = (6, 8) if config.get("model_type") == "t5" else (8, 6)
    config = config.with_defaults(
        num_hidden_layers=depth_and_heads[0], hidden_size=512, num_attention_heads=depth_and_heads[1], head_dim=64
    )
    sizes = Sizes.of(
        config,
        layers=("num_layers", "num_hidden_layers"),
        width=("d_model", "hidden_size"),
        heads=("num_heads", "num_attention_heads"),
        head_dim=("d_kv", "head_dim"),
    )
    eps = config.number("layer_norm_epsilon", default=1e-6)
    distance = config.integer("relative_attention_max_distance", default=128)
    depth = {
        "encoder": sizes.layers,
        "decoder": config.integer("num_decoder_layers", default=sizes.layers),
    }
    tables: list[str] = []

    @cache  # one table in memory for all layers that share it
    def encoding(name: str, bidirectional: bool) -> Encoding:
        tables.append(name)
        return _buckets(source, name, sizes.heads, bidirectional, distance)

    def attention(stack: str, i: int, cross: bool) -> LayerSpec:
        at = f"{root}{stack}.block.{i}.layer.{int(cross)}."
        module = f"{at}{'EncDecAttention' if cross else 'SelfAttention'}."
        own, first = (f"{root}{stack}.block.{j}.layer.0.SelfAttention.relative_attention_bias.weight" for j in (i, 0))
        return LayerSpec(
            stack=stack,
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=1.0,
            causal=stack == "decoder" and not cross,
            kind="cross" if cross else "self",
            encoding=NONE if cross else encoding(own if own in source.names() else first, stack == "encoder"),
            q=Linear.at(f"{module}q"),
            k=Linear.at(f"{module}k"),
            v=Linear.at(f"{module}v"),
            o=Linear.at(f"{module}o"),
            input_norm=NormSpec.at("rms", f"{at}layer_norm", eps),
        )

    def layers() -> Iterator[LayerSpec]:
        for stack in ("encoder", "decoder"):
            if f"{root}{stack}.{_QUERY}" in source.names():
                for i in range(depth[stack]):
                    yield attention(stack, i, cross=False)
                    if stack == "decoder":
                        yield attention(stack, i, cross=True)

    found = tuple(layers())
    embeddings = (f"{root}shared.weight", f"{root}encoder.embed_tokens.weight", f"{root}decoder.embed_tokens.weight")
    return ModelSpec(
        family=family,
        layers=found,
        embedding=next((name for name in embeddings if name in source.names()), None),
        context=claimed_context(config, "n_positions"),
        tables=tuple(tables),
    )


def describe_umt5(config: Config, source: TensorSource) -> ModelSpec:
    """UMT5: the same names, with a bias of its own in every layer."""
    return describe(config, source, family="umt5")


def _buckets(source: TensorSource, name: str, heads: int, bidirectional: bool, distance: int) -> Encoding:
    if name not in source.names():
        raise MissingTensor(f"{source.path} holds no tensor '{name}', the relative bias of its stack.")
    shape = source.info(name).shape
    if len(shape) != 2 or shape[1] != heads:
        raise MissingTensor(
            f"the relative bias '{name}' in {source.path} has shape {shape}; expected (buckets, {heads} heads)."
        )
    return t5(source.read(name), bidirectional=bidirectional, max_distance=distance)


FAMILIES = (
    Family("t5", ("t5", "mt5"), describe, "T5, Flan-T5, ByT5 and mT5"),
    Family("umt5", ("umt5",), describe_umt5, "UMT5: T5 with a bias in every layer"),
)
