"""ViT and DeiT: pre-norm encoders over image patches, with one learned vector for each place of the sequence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Config, learned_table, with_note
from toposcope.checkpoints.families.table import Table
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.encodings import Encoding

VIT = Table(
    family="vit",
    stack="vision",
    causal=False,
    defaults={"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    grouped=False,
    eps_keys=("layer_norm_eps",),
    eps=1e-12,
    context=(),
    context_of_table=True,
    layer="encoder.layer.{}.",
    linear=(
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
    ),
    norm="layer",
    input_norm="layernorm_before",
    embedding=None,
)
RENAMED = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")  # in newer files


def patch_positions(source: TensorSource, name: str, first: str) -> Encoding:
    """The learned table of a vision model; `first` says what stands before the patches."""
    note = f"position 0 on: {first}, then the patches row by row. For images of another size the table is resampled."
    return with_note(learned_table(source, name), note)


def describe(config: Config, source: TensorSource) -> ModelSpec:
    """ViT: a class token, then the patches."""
    return _describe(config, source, "vit", "the class token")


def describe_deit(config: Config, source: TensorSource) -> ModelSpec:
    """DeiT: a class token and a distillation token, then the patches."""
    return _describe(config, source, "deit", "the class token, the distillation token")


def _describe(config: Config, source: TensorSource, family: str, first: str) -> ModelSpec:
    table = replace(VIT, family=family)
    if not table.found(source) and (newer := replace(table, layer="layers.{}.", linear=RENAMED)).found(source):
        table = newer
    draft = table.draft(config, source)
    return draft.spec(patch_positions(source, f"{draft.root}embeddings.position_embeddings", first))


RELATIVES = (
    ("vit_mae", "the class token", "ViT trained by masked patches"),
    ("ijepa", "the first patch", "I-JEPA: ViT without a class token"),
    (
        "audio-spectrogram-transformer",
        "the class token, the distillation token",
        "ViT on the patches of a spectrogram",
    ),
)

FAMILIES = (
    *(Family(name, (name,), partial(_describe, family=name, first=first), about) for name, first, about in RELATIVES),
    Family("vit", ("vit",), describe, "ViT: pre-norm image encoder with learned positions"),
    Family("deit", ("deit",), describe_deit, "DeiT: ViT with a distillation token"),
)
