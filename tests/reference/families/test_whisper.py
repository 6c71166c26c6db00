from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    WhisperConfig,
    WhisperForAudioClassification,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
    WhisperModel,
)

import toposcope
from toposcope.encodings import sinusoidal

from .seq2seq import Place, check_encoder_decoder

TINY = {
    "vocab_size": 64,
    "d_model": 32,
    "num_mel_bins": 8,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_source_positions": 20,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "attn_implementation": "eager",
}


def _places(model: nn.Module) -> list[Place]:
    whole = model.model if hasattr(model, "model") else model
    encoder, decoder = whole.encoder.layers, whole.decoder.layers
    return [
        Place("encoder", "self", "encoder_attentions", list(encoder), [layer.self_attn for layer in encoder]),
        Place("decoder", "self", "decoder_attentions", list(decoder), [layer.self_attn for layer in decoder]),
        Place(
            "decoder",
            "cross",
            "cross_attentions",
            [layer.encoder_attn_layer_norm for layer in decoder],
            [layer.encoder_attn for layer in decoder],
        ),
    ]


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("with its head", WhisperForConditionalGeneration, {}),
        ("bare", WhisperModel, {}),
        ("other heads in the decoder", WhisperModel, {"decoder_attention_heads": 2}),
        ("scaled embeddings", WhisperModel, {"scale_embedding": True}),
    ],
)
def test_whisper(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    model = kind(WhisperConfig(**{**TINY, **options}))
    whole = model.model if hasattr(model, "model") else model
    generator = torch.Generator().manual_seed(1)
    inputs = {
        "input_features": torch.randn(1, 8, 40, generator=generator),
        "decoder_input_ids": torch.randint(3, 64, (1, 12), generator=generator),
    }
    positions = {"encoder": whole.encoder.embed_positions, "decoder": whole.decoder.embed_positions}
    check_encoder_decoder(saved, "whisper", setting, model, inputs, _places, positions=positions, size=1.5)


def test_keys_have_no_bias(saved: Path) -> None:
    WhisperModel(WhisperConfig(**TINY)).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        for layer in ours.layers:
            assert layer.weights.k_bias_GR is None
            assert layer.weights.q_bias_HR is not None
            assert layer.weights.v_bias_GV is not None


def test_the_stored_table_holds_sinusoids(saved: Path) -> None:
    WhisperModel(WhisperConfig(**TINY)).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        stored, formula = ours.layers[0].encoding, sinusoidal(32, layout="half")
        assert stored.name == "sinusoidal"
        assert stored.input is not None
        assert formula.input is not None
        at = np.arange(20)
        np.testing.assert_allclose(stored.input.vectors(at), formula.input.vectors(at), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "stacks"), [(WhisperForAudioClassification, {"encoder"}), (WhisperForCausalLM, {"decoder"})]
)
def test_one_stack_alone(saved: Path, kind: Any, stacks: set[str]) -> None:
    kind(WhisperConfig(**TINY)).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        assert {layer.spec.stack for layer in ours.layers} == stacks
        assert len(ours.layers) == (2 if stacks == {"encoder"} else 6)
        for layer in ours.layers:
            layer.weights
        assert (ours.token_embedding() is None) == (stacks == {"encoder"})
