"""Types that have adapters, measured as if they had none: the measured description equals the hand-written one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import toposcope
from tests.architectures import build
from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.generic.reader import measured_spec
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.read import read_layer
from toposcope.checkpoints.spec import LayerSpec, NormSpec
from toposcope.checkpoints.view import Model

CAUSAL = [
    *("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3", "phi", "gpt_neox", "gptj"),
    *("cohere2", "granite", "gpt2", "opt", "bloom", "stablelm", "starcoder2", "nemotron", "glm4", "smollm3"),
    *("exaone4", "deepseek_v3", "mixtral", "mpt", "persimmon"),
]
OTHERS = [("bert", "masked"), ("modernbert", "masked"), ("distilbert", "masked"), ("t5", "seq2seq")]


@pytest.mark.parametrize(("kind", "group"), [*((kind, "causal") for kind in CAUSAL), *OTHERS])
def test_what_is_measured_is_what_the_adapter_says(kind: str, group: str, tmp_path: Path) -> None:
    build(kind, group).save_pretrained(tmp_path)
    opened = open_checkpoint(tmp_path)
    config = Config(dict(opened.config or {}), "config.json")
    spec = measured_spec(config, opened.source)
    assert spec is not None
    assert spec.compared is not None
    assert spec.compared.attention < 1e-4
    assert spec.compared.output < 1e-3
    measured = Model(spec, opened.source, {}, read_layer)
    with toposcope.load(tmp_path) as written:
        assert len(measured.layers) == len(written.layers)
        for mine, theirs in zip(measured.layers, written.layers, strict=True):
            assert _facts(mine.spec) == _facts(theirs.spec)
            _same_rotation(mine.spec, theirs.spec)
            if theirs.spec.kv_latent is None:
                for name in ("q_HRD", "k_GRD", "v_GVD", "o_HDV"):
                    np.testing.assert_array_equal(getattr(mine.weights, name), getattr(theirs.weights, name), name)


def _facts(spec: LayerSpec) -> dict[str, object]:
    return {
        "sizes": (spec.index, spec.kind, spec.width, spec.heads, spec.kv_heads, spec.head_dim, spec.value_width),
        "scale": pytest.approx(spec.scale, rel=1e-6),
        "mask": (spec.causal and spec.kind == "self", spec.reach, spec.chunk),
        "softcap": spec.softcap,
        "norms": [
            _norm(each) for each in (spec.input_norm, spec.output_norm, spec.residual_norm, spec.q_norm, spec.k_norm)
        ],
        "over": spec.qk_norm_over if spec.q_norm is not None else None,
        "mechanisms": spec.encoding.mechanisms,
        "query scale": spec.encoding.query_scale,
    }


def _norm(norm: NormSpec | None) -> object:
    return None if norm is None else (norm.kind, pytest.approx(norm.eps, rel=1e-6), norm.weight, norm.offset)


def _same_rotation(mine: LayerSpec, theirs: LayerSpec) -> None:
    ours, other = mine.encoding.rotary, theirs.encoding.rotary
    assert (ours is None) == (other is None)
    if ours is not None and other is not None:
        np.testing.assert_array_equal(ours.pairs_F2, other.pairs_F2)
        for context in (None, 1000):
            np.testing.assert_allclose(ours.frequencies(context), other.frequencies(context), atol=3e-7)
        assert ours.attention_factor == pytest.approx(other.attention_factor, rel=1e-5)
    at = np.arange(9)
    for part in ("bias", "input"):
        a, b = getattr(mine.encoding, part), getattr(theirs.encoding, part)
        assert (a is None) == (b is None)
        if part == "bias" and a is not None:
            seen = np.tril(np.ones((9, 9))) if mine.causal else np.ones((9, 9))
            difference = (a.table(at, at) - b.table(at, at)) * seen
            np.testing.assert_allclose(difference, 0, atol=1e-6)
        elif a is not None:
            np.testing.assert_allclose(a.vectors(at), b.vectors(at), atol=1e-6)
