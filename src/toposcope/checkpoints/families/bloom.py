"""BLOOM: one fused projection sorted by head, ALiBi."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, Sizes, claimed_context, find_root
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.encodings import alibi


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """BLOOM adds slope * j; under its causal mask the softmax cannot tell that from -slope * (i - j)."""
    root = find_root(source, "h.0.self_attention.query_key_value.weight")
    sizes = Sizes.of(
        config.with_defaults(n_layer=2, hidden_size=64, n_head=8),
        layers=("num_hidden_layers", "n_layer"),
        width=("n_embed", "hidden_size"),
        heads=("num_attention_heads", "n_head"),
    )
    encoding = alibi(sizes.heads, symmetric=False)
    eps = config.number("layer_norm_epsilon", default=1e-5)
    warnings: tuple[str, ...] = ()
    if config.flag("apply_residual_connection_post_layernorm", default=False):
        warnings = ("attention's output is added to the normalised stream, not to the stream itself",)

    def layer(i: int) -> LayerSpec:
        at = f"{root}h.{i}."
        return LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=True,
            encoding=encoding,
            qkv=Linear.at(f"{at}self_attention.query_key_value"),
            layout="per_head",
            o=Linear.at(f"{at}self_attention.dense"),
            input_norm=NormSpec.at("layer", f"{at}input_layernorm", eps),
            warnings=warnings,
        )

    return ModelSpec(
        family="bloom",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}word_embeddings.weight",
        context=claimed_context(config, "seq_length"),
    )


FAMILIES = (Family("bloom", ("bloom",), describe, "BLOOM and BLOOMZ"),)
