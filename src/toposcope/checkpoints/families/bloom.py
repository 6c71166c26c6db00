"""BLOOM: one fused projection sorted by head, ALiBi."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.encodings import alibi

BLOOM = Table(
    family="bloom",
    defaults={"n_layer": 2, "hidden_size": 64, "n_head": 8},
    sizes={
        "layers": ("num_hidden_layers", "n_layer"),
        "width": ("n_embed", "hidden_size"),
        "heads": ("num_attention_heads", "n_head"),
    },
    grouped=False,
    eps_keys=("layer_norm_epsilon",),
    eps=1e-5,
    context=("seq_length",),
    layer="h.{}.",
    linear=("self_attention.query_key_value", "self_attention.dense"),
    layout="per_head",
    norm="layer",
    embedding="word_embeddings",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """BLOOM adds slope * j; under its causal mask the softmax cannot tell that from -slope * (i - j)."""
    draft = BLOOM.draft(config, source)
    warnings: tuple[str, ...] = ()
    if config.flag("apply_residual_connection_post_layernorm", default=False):
        warnings = ("attention's output is added to the normalised stream, not to the stream itself",)
    encoding = alibi(draft.sizes.heads, symmetric=False)
    return draft.spec(encoding, lambda layer, at: replace(layer, warnings=warnings))


FAMILIES = (Family("bloom", ("bloom",), describe, "BLOOM and BLOOMZ"),)
