"""The lab's models through Toposcope's reader: attention recomputed in float64 against what torch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.lab.making import model, sentences
from toposcope.checkpoints import load
from toposcope.checkpoints.attention import attention, output, project
from toposcope.lab.export import export
from toposcope.lab.model import Transformer, sdpa
from toposcope.lab.quirks import Quirks

TOLERANCE = 1e-5
CASES = (
    ("none", {}),
    ("sinusoidal", {}),
    ("learned", {}),
    ("random", {}),
    ("t5", {}),
    ("alibi", {}),
    ("kerple", {}),
    ("kerple:kernel=power", {}),
    ("fire:threshold=4", {}),
    ("rope", {}),
    ("rope:pairing=half", {}),
    ("rope:scaling=dynamic,factor=2,original_context=5", {}),
    ("rope-partial", {}),
    ("rope@heads:0", {}),
    ("rope@heads:0-1,alibi", {}),
    ("rope@layers:1-", {}),
    ("xpos:scale_base=8", {}),
    ("mla", {}),
    ("mla:nope_dim=3,rope_dim=2", {}),
    ("mla@layers:1", {}),
    ("rope", {"kv_heads": 2}),
    ("rope@heads:0-1", {"kv_heads": 2}),
    ("t5", {"kv_heads": 1, "head_dim": 6}),
)


def theirs(made: Transformer, ids: torch.Tensor) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """What enters each layer, its attention probabilities (H, N, M) and what it adds, on one sentence."""
    entered, seen, added = [], [], []

    def watch(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **kw: Any) -> Any:
        # attention to one-hot values is the attention itself
        keys = torch.eye(k.shape[2], dtype=v.dtype).expand(1, k.shape[1], -1, -1)
        seen.append(sdpa(module, q, k, keys, mask, **kw)[0][0].transpose(0, 1).numpy())
        return sdpa(module, q, k, v, mask, **kw)

    for layer in made.layers:
        layer.register_forward_pre_hook(lambda _, args: entered.append(args[0][0].numpy()))
        layer.attention.register_forward_hook(lambda *args: added.append(args[2][0].numpy()))
        layer.attention.attend = watch
    with torch.no_grad():
        made(ids)
    return entered, seen, added


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("encoding", "options"), CASES, ids=lambda x: x if isinstance(x, str) else repr(x))
def test_attention_of_every_head_is_torchs(
    encoding: str, options: dict[str, int], causal: bool, tmp_path: Path
) -> None:
    made = model(encoding, causal=causal, noise=0.5, **options)
    export(made, tmp_path)
    entered, seen, added = theirs(made, sentences(1))
    with load(tmp_path) as found:
        assert len(found.layers) == len(seen) == 2
        for layer, x, probabilities, out in zip(found.layers, entered, seen, added, strict=True):
            ours = attention(layer, x)
            assert np.ptp(probabilities) > 0.2  # far from uniform, so that a wrong encoding would show
            np.testing.assert_allclose(ours, probabilities, atol=TOLERANCE, rtol=0)
            np.testing.assert_allclose(output(layer, ours, project(layer, x)[2]), out, atol=1e-4, rtol=0)


def test_what_enters_the_first_layer_is_embedding_plus_table(tmp_path: Path) -> None:
    for encoding in ("sinusoidal", "learned", "random"):
        made = model(encoding)
        export(made, tmp_path / encoding)
        ids = sentences(1)
        entered, _, _ = theirs(made, ids)
        with load(tmp_path / encoding) as found:
            table, words = found.layers[0].encoding.input, found.token_embedding()
            assert table is not None
            assert words is not None
            np.testing.assert_allclose(words[ids[0]] + table.vectors(np.arange(10)), entered[0], atol=TOLERANCE)


def test_raw_keys_and_values_are_read_as_a_second_source(tmp_path: Path) -> None:
    made = model("rope", quirks=Quirks(raw_keys_values=True), noise=0.5)
    export(made, tmp_path)
    entered, seen, _ = theirs(made, sentences(1))
    with load(tmp_path) as found:
        for layer, x, probabilities in zip(found.layers, entered, seen, strict=True):
            assert layer.spec.kind == "cross"
            np.testing.assert_allclose(attention(layer, x, entered[0]), probabilities, atol=TOLERANCE, rtol=0)
