"""Nomic BERT: a post-norm encoder with rotary positions, its projections fused on disk."""

from __future__ import annotations

from dataclasses import replace

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import GPT2_SIZES, Config, learned_table
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.encodings import Encoding, rope_from_config

FUSED = Table(
    family="nomic_bert",
    stack="encoder",
    causal=False,
    sizes=GPT2_SIZES,
    grouped=False,
    eps_keys=("layer_norm_eps", "layer_norm_epsilon"),
    eps=1e-12,
    context=("max_position_embeddings", "n_positions"),
    layer="encoder.layers.{}.",
    linear=("attn.Wqkv", "attn.out_proj"),
    norm="layer",
    input_norm=None,
    residual_norm="norm1",
    embedding="embeddings.word_embeddings",
)
SEPARATE = replace(
    FUSED,
    layer="layers.{}.",
    linear=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    residual_norm="post_attention_layernorm",
)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """Both layouts (fused, separate) and both configurations (transformers' own, and Nomic's with GPT-2's names)."""
    if "n_embd" not in config:
        config = config.with_defaults(num_hidden_layers=12, hidden_size=768, num_attention_heads=12)
    table = SEPARATE if not FUSED.found(source) and SEPARATE.found(source) else FUSED
    if config.flag("prenorm", default=False):
        table = replace(table, input_norm=table.residual_norm, residual_norm=None)
    draft = table.draft(config, source)
    return draft.spec(_positions(config, source, draft.root, draft.sizes.head_dim))


def _positions(config: Config, source: TensorSource, root: str, head_dim: int) -> Encoding:
    """The rotation; or the learned table of models that Nomic built without one (a rotary fraction of 0)."""
    fraction = config.number("rotary_emb_fraction", default=1.0)
    if fraction <= 0:
        return learned_table(source, f"{root}embeddings.position_embeddings.weight")
    if config.get("rotary_scaling_factor") is not None:
        # what Nomic's own configuration calls a scaling factor is dynamic NTK, measured by the trained length
        config = config.updated(
            rope_scaling={"rope_type": "dynamic", "factor": config.number("rotary_scaling_factor")},
            max_position_embeddings=config.integer("max_trained_positions", "n_positions", default=2048),
        )
    interleaved = config.flag("rotary_emb_interleaved", default=False)
    return rope_from_config(
        config,
        head_dim,
        pairing="interleaved" if interleaved else "half",
        default_base=1000.0,
        default_partial=fraction,
    )


FAMILIES = (
    Family(
        "nomic_bert",
        ("nomic_bert",),
        describe,
        "Nomic BERT: post-norm encoder with rotary positions",
        "encoder.layers.0.attn.Wqkv.weight",
    ),
)
