"""Whisper: an encoder of sound with stored sinusoids, a decoder of text with learned positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import NONE, Encoding

_QUERY = "layers.0.self_attn.q_proj.weight"
_DEFAULTS = {
    "encoder_layers": 4,
    "decoder_layers": 4,
    "hidden_size": 384,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
}
_EPS = 1e-5  # torch's default: the configuration does not name it


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Encoder layers, then for each decoder layer its self- and its cross-attention; either stack may be missing."""
    root = find_root(source, f"encoder.{_QUERY}", f"decoder.{_QUERY}")

    def layers() -> Iterator[LayerSpec]:
        for stack in ("encoder", "decoder"):
            if f"{root}{stack}.{_QUERY}" not in source.names():
                continue
            sizes = Sizes.of(
                config.with_defaults(**_DEFAULTS),
                layers=(f"{stack}_layers",),
                width=("d_model", "hidden_size"),
                heads=(f"{stack}_attention_heads",),
                kv_heads=(),
            )
            encoding = _positions(source, f"{root}{stack}.embed_positions.weight", stack)
            for i in range(sizes.layers):
                at = f"{root}{stack}.layers.{i}."
                yield _attention(sizes, stack, i, f"{at}self_attn", encoding)
                if stack == "decoder":
                    yield replace(_attention(sizes, stack, i, f"{at}encoder_attn", NONE), kind="cross", causal=False)

    embedding = f"{root}decoder.embed_tokens.weight"
    return ModelSpec(
        family="whisper",
        layers=tuple(layers()),
        embedding=embedding if embedding in source.names() else None,
        context=claimed_context(config, "max_target_positions"),
    )


def _attention(sizes: Sizes, stack: str, i: int, module: str, encoding: Encoding) -> LayerSpec:
    return LayerSpec(
        stack=stack,
        index=i,
        width=sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        causal=stack == "decoder",
        encoding=encoding,
        q=Linear.at(f"{module}.q_proj"),
        k=Linear.at(f"{module}.k_proj"),  # without a bias, unlike the other three
        v=Linear.at(f"{module}.v_proj"),
        o=Linear.at(f"{module}.out_proj"),
        input_norm=NormSpec.at("layer", f"{module}_layer_norm", _EPS),
    )


def _positions(source: TensorSource, name: str, stack: str) -> Encoding:
    """The stored table; the encoder's holds sinusoids, which are never trained."""
    table = learned_table(source, name)
    if stack == "decoder" or table.input is None:
        return table
    return replace(table, name="sinusoidal", title=f"sinusoids, stored for {table.input.length} positions")


FAMILIES = (Family("whisper", ("whisper",), describe, "Whisper"),)
