"""DistilBERT: BERT under shorter names, with learned positions or a stored sinusoid."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.bert import layer_norm
from toposcope.checkpoints.families.common import Config, Sizes, find_root, learned_table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec

EPS = 1e-12  # written into the architecture, not into its configuration


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The layers, after whose attention the sum with the stream is normalised."""
    root = find_root(source, "transformer.layer.0.attention.q_lin.weight")
    sizes = Sizes.of(
        config.with_defaults(n_layers=6, dim=768, n_heads=12),
        layers=("n_layers", "num_hidden_layers"),
        width=("dim", "hidden_size"),
        heads=("n_heads", "num_attention_heads"),
    )
    encoding = learned_table(source, f"{root}embeddings.position_embeddings.weight")
    if config.flag("sinusoidal_pos_embds", default=False):
        # the file holds the sinusoid as a table, and that table is what the model adds
        encoding = replace(encoding, notes=(*encoding.notes, "the configuration says that the table is a sinusoid."))

    def layer(i: int) -> LayerSpec:
        at = f"{root}transformer.layer.{i}."
        return LayerSpec(
            stack="encoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=False,
            encoding=encoding,
            q=Linear.at(f"{at}attention.q_lin"),
            k=Linear.at(f"{at}attention.k_lin"),
            v=Linear.at(f"{at}attention.v_lin"),
            o=Linear.at(f"{at}attention.out_lin"),
            residual_norm=layer_norm(source, f"{at}sa_layer_norm", EPS),
        )

    return ModelSpec(
        family="distilbert",
        layers=tuple(layer(i) for i in range(sizes.layers)),
        embedding=f"{root}embeddings.word_embeddings.weight",
        context=None if encoding.input is None else encoding.input.length,
    )


FAMILIES = (
    Family(
        "distilbert",
        ("distilbert",),
        describe,
        "DistilBERT: post-norm encoder with learned or stored sinusoidal positions",
        "transformer.layer.0.attention.q_lin.weight",
    ),
)
