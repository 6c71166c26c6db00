"""GPT-J: separate projections without biases, rotary positions with adjacent channels paired."""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import GPT2_SIZES, Config
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.encodings import rope

GPTJ = Table(
    family="gptj",
    defaults={"n_layer": 28, "n_embd": 4096, "n_head": 16},
    sizes=GPT2_SIZES,
    grouped=False,
    eps_keys=("layer_norm_epsilon",),
    eps=1e-5,
    context=("max_position_embeddings", "n_positions"),
    layer="h.{}.",
    linear=("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj"),
    norm="layer",
    input_norm="ln_1",
    embedding="wte",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """The first `rotary_dim` channels of each head turn: 64 where the key is missing, all where it is null."""
    draft = GPTJ.draft(config, source)
    whole_head = "rotary_dim" in config and config["rotary_dim"] is None
    rotary_dim = None if whole_head else config.integer("rotary_dim", default=64)
    return draft.spec(rope(draft.sizes.head_dim, pairing="interleaved", rotary_dim=rotary_dim))


FAMILIES = (Family("gptj", ("gptj",), describe, "GPT-J"),)
