from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForTokenClassification,
    T5Model,
    UMT5Config,
    UMT5EncoderModel,
    UMT5ForConditionalGeneration,
)

import toposcope
from toposcope.core.errors import MissingTensor

from .harness import check_self_attention, rewrite_config
from .seq2seq import Place, check_encoder_decoder

TINY = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "attn_implementation": "eager",
}


def _places(model: nn.Module) -> list[Place]:
    encoder, decoder = ([block.layer for block in stack.block] for stack in (model.encoder, model.decoder))
    return [
        Place(
            "encoder", "self", "encoder_attentions", [b[0] for b in encoder], [b[0].SelfAttention for b in encoder]
        ),
        Place(
            "decoder", "self", "decoder_attentions", [b[0] for b in decoder], [b[0].SelfAttention for b in decoder]
        ),
        Place(
            "decoder", "cross", "cross_attentions", [b[1] for b in decoder], [b[1].EncDecAttention for b in decoder]
        ),
    ]


def _texts(encoder: int, decoder: int) -> dict[str, torch.Tensor]:
    """Long enough that the far buckets and their borders are used."""
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(3, 64, (1, encoder), generator=generator),
        "decoder_input_ids": torch.randint(3, 64, (1, decoder), generator=generator),
    }


@pytest.mark.parametrize(
    ("setting", "options", "lengths"),
    [
        ("32 buckets", {}, (70, 40)),
        ("past the greatest distance", {}, (150, 140)),
        ("8 buckets to 20", {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}, (40, 30)),
        ("gated", {"feed_forward_proj": "gated-gelu"}, (20, 25)),
        ("eps 1e-2", {"layer_norm_epsilon": 1e-2}, (20, 25)),
    ],
)
def test_t5(saved: Path, setting: str, options: dict[str, Any], lengths: tuple[int, int]) -> None:
    model = T5ForConditionalGeneration(T5Config(**{**TINY, **options}))
    check_encoder_decoder(saved, "t5", setting, model, _texts(*lengths), _places)


def test_mt5(saved: Path) -> None:
    model = MT5ForConditionalGeneration(MT5Config(**TINY))
    check_encoder_decoder(saved, "t5", "mt5", model, _texts(20, 18), _places)


def test_umt5(saved: Path) -> None:
    model = UMT5ForConditionalGeneration(UMT5Config(**TINY))
    check_encoder_decoder(saved, "umt5", "a bias in every layer", model, _texts(30, 24), _places)


def test_original_configuration(saved: Path) -> None:
    """The first files name neither the decoder's depth nor the greatest distance."""

    def shorten(directory: Path) -> None:
        keep = ("model_type", "d_model", "d_kv", "num_layers", "num_heads", "relative_attention_num_buckets")
        values = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({key: values[key] for key in keep} | {"n_positions": 512}))

    model = T5Model(T5Config(**{**TINY, "num_decoder_layers": 2}))
    check_encoder_decoder(saved, "t5", "original configuration", model, _texts(20, 18), _places, prepare=shorten)
    with toposcope.load(saved) as ours:
        assert ours.spec.context == 512
        assert ours.spec.embedding == "shared.weight"


@pytest.mark.parametrize(
    ("family", "kind", "config"), [("t5", T5EncoderModel, T5Config), ("umt5", UMT5EncoderModel, UMT5Config)]
)
def test_encoder_alone(saved: Path, family: str, kind: Any, config: Any) -> None:
    check_self_attention(
        saved,
        family,
        "encoder alone",
        kind(config(**TINY)),
        lambda m: [block.layer[0] for block in m.encoder.block],
        outputs=lambda m: [block.layer[0].SelfAttention for block in m.encoder.block],
        length=30,
    )


def test_with_a_prefix(saved: Path) -> None:
    check_self_attention(
        saved,
        "t5",
        "with a prefix",
        T5ForTokenClassification(T5Config(**TINY)),
        lambda m: [block.layer[0] for block in m.transformer.encoder.block],
    )


def test_one_table_is_shared_and_claimed(saved: Path) -> None:
    T5Model(T5Config(**TINY)).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        assert ours.layers[0].encoding is ours.layers[1].encoding
        assert ours.layers[0].encoding is not ours.layers[2].encoding
        assert not ours.skipped


def test_the_unused_bias_of_cross_attention_is_reported(saved: Path) -> None:
    """T5's published files hold one; no version of the model uses it."""
    T5Model(T5Config(**TINY)).save_pretrained(saved)
    file = saved / "model.safetensors"
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    save_file({**load_file(file), name: torch.ones(32, 4)}, file, metadata={"format": "pt"})
    with toposcope.load(saved) as ours:
        assert [skipped.tensors for skipped in ours.skipped] == [(name,)]
        assert ours.layers[3].encoding.name == "none"


@pytest.mark.parametrize("shape", [None, (32, 3), (32,)])
def test_damaged_bias(saved: Path, shape: tuple[int, ...] | None) -> None:
    T5Model(T5Config(**TINY)).save_pretrained(saved)
    file = saved / "model.safetensors"
    tensors = load_file(file)
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    del tensors[name]
    if shape is not None:
        tensors[name] = torch.ones(shape)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(MissingTensor, match="relative_attention_bias"):
        toposcope.load(saved)


def test_head_width_is_read(saved: Path) -> None:
    T5Model(T5Config(**TINY)).save_pretrained(saved)
    rewrite_config(saved, d_kv=8)
    with toposcope.load(saved) as ours, pytest.raises(MissingTensor, match="shape"):
        ours.layers[0].weights
