"""A hand-written config.json: transformers builds the model from it, Toposcope reads the very same file.

The weights are stored as published ones are: in one file, in shards with an index, or in bfloat16.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)

import toposcope
from tests.architectures import inputs, randomise
from tests.architectures.compare import at_input, differences
from tests.architectures.record import record

from .harness import COVERED, TOLERANCE

AUTO: dict[str, Any] = {
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "encoder": AutoModel,
    "seq2seq": AutoModelForSeq2SeqLM,
    "image_text": AutoModelForImageTextToText,
}
STORED = ("one file", "shards", "bfloat16")
STREAM = 1e-4  # of the largest entry; theirs is summed in float32

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PAIR = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}


def check_written(
    directory: Path,
    setting: str,
    settings: dict[str, Any],
    group: str,
    *,
    stored: str = "one file",
    follows: bool = True,
) -> None:
    """Compare all attention of the model with ours: probabilities, output, and the stream that follows.

    `group` says what the model is built for (`AUTO`).
    `follows` False: attention stands beside the feed-forward part, so that nothing reads the stream between them.
    """
    directory.mkdir(exist_ok=True)
    text = json.dumps(settings)
    (directory / "config.json").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.from_pretrained(directory)
        model = _made(AUTO[group], config)
        _store(model, directory, stored)
        (directory / "config.json").write_text(text)
        noted = record(model, inputs(model, 2, 21, 3))
    with toposcope.load(directory) as ours, torch.no_grad():
        found, missing = differences(ours, model, noted, 2)
        assert not missing
        assert len({each.at for each in found}) == len(noted.attended) > 0
        COVERED.append((ours.family, setting, max(each.attention for each in found)))
        assert max(each.attention for each in found) <= TOLERANCE
        assert max(each.output or 0.0 for each in found) <= TOLERANCE
        assert any(each.peaked for each in found)
        if follows:
            assert max(each.stream or 0.0 for each in found) <= STREAM
        off, unnamed = at_input(ours, noted, 2)
        assert (off, unnamed) == (None, None)


def _made(auto: Any, config: Any) -> nn.Module:
    model = auto.from_config(config, attn_implementation="eager").float().eval()
    if hasattr(model, "set_default_language"):
        model.set_default_language(config.languages[0])
    randomise(model)
    return model


def _store(model: nn.Module, directory: Path, stored: str) -> None:
    if stored == "bfloat16":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16())
    model.save_pretrained(directory, max_shard_size="20KB" if stored == "shards" else "1GB")
    if stored == "bfloat16":
        file = directory / "model.safetensors"
        halved = {n: each.bfloat16() if each.is_floating_point() else each for n, each in load_file(file).items()}
        save_file(halved, file, {"format": "pt"})
    assert (directory / "model.safetensors.index.json").exists() == (stored == "shards")
