from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MptConfig, MptForCausalLM, MptModel
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

import toposcope
from toposcope.core.errors import BadConfig

from .harness import check_self_attention, rewrite_config

TINY = {
    "vocab_size": 64,
    "d_model": 48,
    "n_layers": 2,
    "n_heads": 4,
    "max_seq_len": 32,
    "attn_implementation": "eager",
}


@pytest.mark.parametrize(
    ("setting", "options", "attention"),
    [
        ("plain", {}, {}),
        *((f"{heads} heads", {"n_heads": heads}, {}) for heads in (1, 3, 6, 12)),
        ("softmax_scale", {}, {"softmax_scale": 0.6}),
        ("clip_qkv, out of reach", {}, {"clip_qkv": 1e4}),
        ("eps 1e-2", {"layer_norm_epsilon": 1e-2}, {}),
    ],
)
def test_mpt(saved: Path, setting: str, options: dict[str, Any], attention: dict[str, Any]) -> None:
    model = MptForCausalLM(MptConfig(**{**TINY, **options}, attn_config=attention))
    check_self_attention(
        saved,
        "mpt",
        setting,
        model,
        lambda m: m.transformer.blocks,
        outputs=lambda m: [block.attn for block in m.transformer.blocks],
    )
    with toposcope.load(saved) as ours:
        assert any("clip_qkv" in warning for warning in ours.layers[0].spec.warnings) == ("clip_qkv" in attention)


@pytest.mark.parametrize(("greatest", "heads"), [(4, 4), (16, 4), (16, 6), (5, 12)])
def test_greatest_bias(saved: Path, greatest: int, heads: int) -> None:
    """transformers builds every ALiBi with a maximum of 8; here its own function is given the configured one."""
    model = MptModel(MptConfig(**{**TINY, "n_heads": heads}, attn_config={"alibi_bias_max": greatest}))
    model.build_mpt_alibi_tensor = partial(build_mpt_alibi_tensor, alibi_bias_max=greatest)
    check_self_attention(saved, "mpt", f"alibi_bias_max {greatest}, {heads} heads", model, lambda m: m.blocks)


class _Nothing:
    """Stands for the bias of a model trained without ALiBi."""

    def __call__(self, heads: int, length: int, device: Any = None) -> torch.Tensor:
        return torch.zeros(heads, 1, length)


@pytest.mark.parametrize("table", [True, False])
def test_without_alibi(saved: Path, table: bool) -> None:
    """Without ALiBi a model has a learned table or no encoding; transformers knows neither, so it gets no bias."""
    drawn = torch.randn(32, 48, generator=torch.Generator().manual_seed(3))

    def load(directory: Path) -> toposcope.Model:
        if table:
            file = directory / "model.safetensors"
            save_file({**load_file(file), "wpe.weight": drawn}, file, metadata={"format": "pt"})
        return toposcope.load(directory)

    model = MptModel(MptConfig(**TINY, attn_config={"alibi": False}))
    model.build_mpt_alibi_tensor = _Nothing()
    check_self_attention(saved, "mpt", f"no ALiBi, table: {table}", model, lambda m: m.blocks, load=load)
    with toposcope.load(saved) as ours:
        encoding = ours.layers[0].encoding
        assert encoding.name == ("learned" if table else "none")
        if encoding.input is not None:
            np.testing.assert_allclose(encoding.input.vectors(np.arange(32)), drawn.numpy(), atol=1e-7)


def test_rotary_mpt_is_refused(saved: Path) -> None:
    MptModel(MptConfig(**TINY)).save_pretrained(saved)
    rewrite_config(saved, attn_config={"alibi": False, "rope": True})
    with pytest.raises(BadConfig, match="rotary"):
        toposcope.load(saved)
