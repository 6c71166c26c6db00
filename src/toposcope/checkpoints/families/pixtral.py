"""Pixtral's image encoder: Llama's blocks over patches that are turned by row and column, each image by itself."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.encodings.rotary_plane import numbered_rope

PIXTRAL = Table(
    family="pixtral",
    stack="vision",
    causal=False,
    defaults={"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16},
    grouped=False,
    eps_keys=(),
    eps=1e-5,  # in the code, not in the configuration
    context=(),
    linear=("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
    input_norm="attention_norm",
    embedding=None,
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The encoder by itself; in a model of text and images it is a tower that is not read."""
    draft = PIXTRAL.draft(config, source)
    written = draft.config
    inside = written.part("rope_parameters") if written.get("rope_parameters") else written
    return draft.spec(numbered_rope(draft.sizes.head_dim, base=inside.number("rope_theta", default=1e4)))


FAMILIES = (Family("pixtral", ("pixtral",), describe, "Pixtral's image encoder: rotation by row and column"),)
