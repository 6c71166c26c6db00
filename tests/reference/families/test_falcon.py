from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, FalconModel

import toposcope
from toposcope.checkpoints.attention import attention

from .harness import (
    array,
    check_output,
    check_self_attention,
    compare,
    far_from_uniform,
    randomise,
    rewrite_config,
    watch_inputs,
    watch_outputs,
)

TINY = {"vocab_size": 64, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "ffn_hidden_size": 48}

LAYOUTS = [
    ("multi-query", {"multi_query": True}),
    ("one key per head", {"multi_query": False}),
    ("one key per head, serial, biases", {"multi_query": False, "parallel_attn": False, "bias": True}),
    ("grouped", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("grouped, biases", {"new_decoder_architecture": True, "num_kv_heads": 3, "bias": True}),
    ("grouped, one norm", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
]
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        *LAYOUTS,
        ("base 500", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("linear", {"rope_parameters": LINEAR}),
        ("eps 1e-2", {"layer_norm_epsilon": 1e-2}),
    ],
)
def test_rotary(saved: Path, setting: str, options: dict[str, Any]) -> None:
    model = FalconForCausalLM(FalconConfig(**{**TINY, **options}, attn_implementation="eager"))
    check_self_attention(
        saved,
        "falcon",
        setting,
        model,
        lambda m: m.transformer.h,
        outputs=lambda m: [block.self_attention for block in m.transformer.h],
    )


def _alibi(saved: Path, setting: str, length: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Compare with what torch's own attention makes of the bias.

    In transformers 5.22 the eager code adds the bias twice, once to the logits and once within the mask. Its default
    code, which gives no probabilities, adds it once, as the model was trained. Their probabilities are therefore read
    off the default code: attention over the rows of the identity.
    """
    model = FalconModel(FalconConfig(**{**TINY, **options}, alibi=True, attn_implementation="sdpa")).eval()
    randomise(model)
    model.save_pretrained(saved)
    theirs: list[np.ndarray] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **settings: Any) -> torch.Tensor:
        rows = torch.eye(key.shape[-2]).expand(*key.shape[:-1], -1)
        theirs.append(array(attend(query, key, rows, **settings)[0]))
        return attend(query, key, value, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    streams = watch_inputs(list(model.h))
    added = watch_outputs([block.self_attention for block in model.h])
    with torch.no_grad():
        model(torch.randint(3, 64, (1, length), generator=torch.Generator().manual_seed(1)))
    with toposcope.load(saved) as ours:
        assert ours.family == "falcon"
        assert all(far_from_uniform(one) for one in theirs)
        for layer, stream, what, probabilities in zip(ours.layers, streams, added, theirs, strict=True):
            x = array(stream[0][0])
            compare("falcon", setting, attention(layer, x), probabilities)
            check_output(layer, x, array(what[0][0]))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 24])
def test_alibi(saved: Path, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 16 heads on, and wherever their number is no power of two, slopes are not exact in bfloat16."""
    _alibi(saved, f"ALiBi, {heads} heads", 24, monkeypatch, num_attention_heads=heads, multi_query=False)


@pytest.mark.parametrize(("setting", "options"), LAYOUTS)
def test_alibi_layouts(saved: Path, setting: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _alibi(saved, f"ALiBi, {setting}", 24, monkeypatch, **options)


@pytest.mark.parametrize("heads", [8, 12])
def test_alibi_on_a_long_text(saved: Path, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 256 bfloat16 does not hold every position."""
    _alibi(saved, f"ALiBi, {heads} heads, 600 tokens", 600, monkeypatch, num_attention_heads=heads)


@pytest.mark.parametrize(
    ("kind", "options", "keys"),
    [
        ("RefinedWebModel", {"multi_query": True}, {"multi_query": True}),
        ("RefinedWeb", {"new_decoder_architecture": True, "num_kv_heads": 2}, {"n_head_kv": 2}),
    ],
)
def test_before_it_was_called_falcon(saved: Path, kind: str, options: dict[str, Any], keys: dict[str, Any]) -> None:
    def load(directory: Path) -> toposcope.Model:
        gone = ("num_hidden_layers", "num_attention_heads", "num_kv_heads", "new_decoder_architecture", "multi_query")
        rewrite_config(directory, drop=gone, model_type=kind, n_layer=2, n_head=6, **keys)
        return toposcope.load(directory)

    model = FalconModel(FalconConfig(**TINY, **options, attn_implementation="eager"))
    check_self_attention(saved, "falcon", kind, model, lambda m: m.h, load=load)
