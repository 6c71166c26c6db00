"""DistilBERT: BERT under shorter names, with learned positions or a stored sinusoid."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, learned_table, with_note
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec

DISTILBERT = Table(
    family="distilbert",
    stack="encoder",
    causal=False,
    defaults={"n_layers": 6, "dim": 768, "n_heads": 12},
    sizes={
        "layers": ("n_layers", "num_hidden_layers"),
        "width": ("dim", "hidden_size"),
        "heads": ("n_heads", "num_attention_heads"),
    },
    grouped=False,
    eps_keys=(),  # written into the architecture, not into its configuration
    eps=1e-12,
    context=(),
    context_of_table=True,
    layer="transformer.layer.{}.",
    linear=("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
    norm="layer",
    input_norm=None,
    residual_norm="sa_layer_norm",
    embedding="embeddings.word_embeddings",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The layers, after whose attention the sum with the stream is normalised."""
    draft = DISTILBERT.draft(config, source)
    encoding = learned_table(source, f"{draft.root}embeddings.position_embeddings.weight")
    if config.flag("sinusoidal_pos_embds", default=False):
        # the file holds the sinusoid as a table, and that table is what the model adds
        encoding = with_note(encoding, "the configuration says that the table is a sinusoid.")
    return draft.spec(encoding)


FAMILIES = (
    Family(
        "distilbert",
        ("distilbert",),
        describe,
        "DistilBERT: post-norm encoder with learned or stored sinusoidal positions",
        "transformer.layer.0.attention.q_lin.weight",
    ),
)
