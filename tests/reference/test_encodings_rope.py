"""RoPE and its scalings against transformers: frequencies, attention factors, and vectors as a model turns them.

transformers computes in float32. `in_double()` runs the very same functions in float64, so that formulas can be
compared to 1e-12 instead of to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from toposcope.encodings import mla, rope

SINGLE_DTYPE = torch.float32  # held here, for the name itself is patched below
DOUBLE, SINGLE = 1e-12, 3e-6  # relative: ours against theirs in float64, and as they run in float32


@contextmanager
def in_double() -> Iterator[None]:
    """Let transformers' rotary code compute in float64."""
    with (
        patch.object(torch, "float", torch.float64),
        patch.object(torch, "float32", torch.float64),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(SINGLE_DTYPE)


def llama(head_dim: int, context: int, parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=context,
        rope_parameters=dict(parameters),
    )


def compare(theirs: Any, ours: Any, seq_len: int | None = None) -> None:
    """Their init function (a partial of config) against our encoding, in both precisions."""
    for precise in (True, False):
        if precise:
            with in_double():
                theirs_frequencies, theirs_factor = theirs()
            assert theirs_frequencies.dtype == torch.float64  # otherwise the comparison is not what it says
        else:
            theirs_frequencies, theirs_factor = theirs()
            assert np.abs(ours.rotary.frequencies(seq_len) - theirs_frequencies.double().numpy()).max() <= 1e-6
        tolerance = DOUBLE if precise else SINGLE
        np.testing.assert_allclose(
            ours.rotary.frequencies(seq_len), theirs_frequencies.double().numpy(), rtol=tolerance
        )
        assert ours.rotary.attention_factor == pytest.approx(float(theirs_factor), rel=DOUBLE)


HEADS = st.integers(2, 64).map(lambda pairs: 2 * pairs)
BASES = st.floats(100.0, 2e6)
FACTORS = st.floats(1.0, 64.0)
LENGTHS = st.integers(64, 1 << 17)


@given(head_dim=HEADS, base=BASES)
@settings(max_examples=30, deadline=None)
def test_default(head_dim: int, base: float) -> None:
    config = llama(head_dim, 512, {"rope_type": "default", "rope_theta": base})
    compare(lambda: LlamaRotaryEmbedding.compute_default_rope_parameters(config), rope(head_dim, base=base))


@given(head_dim=HEADS, base=BASES, factor=FACTORS, partial=st.sampled_from([1.0, 0.5]))
@settings(max_examples=30, deadline=None)
def test_linear(head_dim: int, base: float, factor: float, partial: float) -> None:
    head_dim *= 2
    config = llama(
        head_dim,
        512,
        {"rope_type": "linear", "rope_theta": base, "factor": factor, "partial_rotary_factor": partial},
    )
    ours = rope(head_dim, base=base, scaling="linear", factor=factor, partial=partial)
    compare(lambda: ROPE_INIT_FUNCTIONS["linear"](config), ours)


@given(head_dim=HEADS, base=BASES, factor=FACTORS, context=LENGTHS, seq_len=st.none() | LENGTHS)
@settings(max_examples=50, deadline=None)
def test_dynamic(head_dim: int, base: float, factor: float, context: int, seq_len: int | None) -> None:
    config = llama(head_dim, context, {"rope_type": "dynamic", "rope_theta": base, "factor": factor})
    ours = rope(head_dim, base=base, scaling="dynamic", factor=factor, original_context=context)
    compare(lambda: ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=seq_len), ours, seq_len)


def test_ntk_is_what_dynamic_reaches_at_a_stretched_length() -> None:
    """Static NTK by factor s is dynamic NTK with factor 1 at s times the original context."""
    config = llama(64, 1024, {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0})
    with in_double():
        theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=8192)
    ours = rope(64, scaling="ntk", factor=8).rotary
    assert ours is not None
    np.testing.assert_allclose(ours.frequencies(), theirs.numpy(), rtol=DOUBLE)


@given(
    head_dim=HEADS,
    base=BASES,
    factor=st.none() | FACTORS,
    original=LENGTHS,
    stretch=st.floats(1.0, 32.0),
    attention_factor=st.none() | st.floats(0.5, 2.0),
    mscale=st.sampled_from([None, 0.0, 0.707, 1.0]),
    mscale_all_dim=st.sampled_from([None, 0.0, 0.5, 1.0]),
    betas=st.sampled_from([(None, None), (32.0, 1.0), (64.0, 2.5), (8.0, 0.5), (0, 0)]),
    truncate=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_yarn(
    head_dim: int,
    base: float,
    factor: float | None,
    original: int,
    stretch: float,
    attention_factor: float | None,
    mscale: float | None,
    mscale_all_dim: float | None,
    betas: tuple[float | None, float | None],
    truncate: bool,
) -> None:
    context = int(original * stretch)
    given_parameters = {
        "factor": factor,
        "attention_factor": attention_factor,
        "mscale": mscale,
        "mscale_all_dim": mscale_all_dim,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
        "truncate": truncate,
    }
    config = llama(head_dim, context, {"rope_type": "default", "rope_theta": base})
    config.rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": base,
        "original_max_position_embeddings": original,
        **given_parameters,
    }
    ours = rope(head_dim, base=base, scaling="yarn", original_context=original, context=context, **given_parameters)
    with in_double():
        theirs_frequencies, theirs_factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    assert ours.rotary is not None
    # a ramp between two nearly equal ends is steep: float32 says little there, so only double is compared
    np.testing.assert_allclose(ours.rotary.frequencies(), theirs_frequencies.numpy(), rtol=1e-10)
    assert ours.rotary.attention_factor == pytest.approx(theirs_factor, rel=DOUBLE)


@given(
    head_dim=HEADS,
    base=BASES,
    original=LENGTHS,
    stretch=st.floats(1.0, 32.0),
    factor=st.none() | st.floats(0.5, 64.0),
    attention_factor=st.none() | st.floats(0.5, 2.0),
    seq_len=st.none() | LENGTHS,
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_longrope(
    head_dim: int,
    base: float,
    original: int,
    stretch: float,
    factor: float | None,
    attention_factor: float | None,
    seq_len: int | None,
    seed: int,
) -> None:
    draw = np.random.default_rng(seed)
    context = int(original * stretch)
    lists = {
        "short_factor": draw.uniform(1, 3, head_dim // 2).tolist(),
        "long_factor": draw.uniform(1, 60, head_dim // 2).tolist(),
    }
    parameters = {
        "rope_type": "longrope",
        "rope_theta": base,
        "original_max_position_embeddings": original,
        **lists,
    }
    if factor is not None:
        parameters["factor"] = factor
    if attention_factor is not None:
        parameters["attention_factor"] = attention_factor
    config = llama(head_dim, context, parameters)
    ours = rope(
        head_dim,
        base=base,
        scaling="longrope",
        original_context=original,
        context=context,
        factor=factor,
        attention_factor=attention_factor,
        **lists,
    )
    compare(lambda: ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=seq_len), ours, seq_len)


@given(
    head_dim=HEADS,
    base=BASES,
    factor=FACTORS,
    original=LENGTHS,
    low=st.floats(0.5, 4.0),
    gap=st.floats(0.5, 8.0),
)
@settings(max_examples=60, deadline=None)
def test_llama3(head_dim: int, base: float, factor: float, original: int, low: float, gap: float) -> None:
    parameters = {
        "rope_type": "llama3",
        "rope_theta": base,
        "factor": factor,
        "original_max_position_embeddings": original,
        "low_freq_factor": low,
        "high_freq_factor": low + gap,
    }
    config = llama(head_dim, 2 * original, parameters)
    ours = rope(
        head_dim,
        base=base,
        scaling="llama3",
        factor=factor,
        original_context=original,
        low_freq_factor=low,
        high_freq_factor=low + gap,
    )
    with in_double():
        theirs_frequencies, theirs_factor = ROPE_INIT_FUNCTIONS["llama3"](config)
    assert ours.rotary is not None
    np.testing.assert_allclose(ours.rotary.frequencies(), theirs_frequencies.numpy(), rtol=1e-10)
    assert ours.rotary.attention_factor == theirs_factor == 1.0


@given(head_dim=HEADS, base=BASES, factor=st.none() | FACTORS, partial=st.sampled_from([0.25, 0.5, 0.7, 1.0]))
@settings(max_examples=40, deadline=None)
def test_proportional(head_dim: int, base: float, factor: float | None, partial: float) -> None:
    head_dim = max(head_dim, 8)
    parameters: dict[str, Any] = {
        "rope_type": "proportional",
        "rope_theta": base,
        "partial_rotary_factor": partial,
    }
    if factor is not None:
        parameters["factor"] = factor
    config = llama(head_dim, 512, parameters)
    ours = rope(head_dim, base=base, scaling="proportional", partial=partial, factor=factor).rotary
    assert ours is not None
    with in_double():
        theirs, _ = ROPE_INIT_FUNCTIONS["proportional"](config)
    turning = len(ours.pairs_F2)
    np.testing.assert_allclose(ours.frequencies(), theirs[:turning].numpy(), rtol=DOUBLE)
    assert not theirs[turning:].any()  # the pairs we leave out are those that do not turn
    assert (ours.pairs_F2[:, 1] - ours.pairs_F2[:, 0] == head_dim // 2).all()


def test_every_scaling_of_transformers_is_compared_here() -> None:
    assert set(ROPE_INIT_FUNCTIONS) == {"linear", "dynamic", "yarn", "longrope", "llama3", "proportional"}


@pytest.mark.parametrize("length", [1, 63, 64, 65, 500, 4096])
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_fresh_model_chooses_the_same_frequencies_for_a_text(kind: str, length: int) -> None:
    """Through the module's forward pass, which decides by the highest position it sees."""
    lists = {"short_factor": [1.0] * 16, "long_factor": np.linspace(1, 30, 16).tolist()}
    if kind == "longrope":
        parameters: dict[str, Any] = {"original_max_position_embeddings": 64, **lists}
    else:
        parameters = {"factor": 3.0}
    context = 1024 if kind == "longrope" else 64
    config = llama(32, context, {"rope_type": kind, "rope_theta": 1e4, **parameters})
    with in_double():
        module = LlamaRotaryEmbedding(config)
        module(torch.zeros(1, 1, 32), torch.arange(length)[None])
        theirs = module.inv_freq.numpy()
    ours = rope(
        32,
        scaling=kind,
        original_context=64,
        context=context,
        factor=3.0 if kind == "dynamic" else None,
        **(lists if kind == "longrope" else {}),
    ).rotary
    assert ours is not None
    np.testing.assert_allclose(ours.frequencies(length), theirs, rtol=DOUBLE)


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scaling", ["default", "yarn"])
def test_llama_turns_vectors_alike(scaling: str) -> None:
    parameters: dict[str, Any] = {"rope_type": scaling, "rope_theta": 5e5}
    if scaling == "yarn":
        parameters |= {"factor": 4.0, "original_max_position_embeddings": 128}
    config = llama(32, 512, parameters)
    q, k = vectors(1, 3, 40, 32, seed=1), vectors(1, 3, 40, 32, seed=2)
    at = torch.arange(40) * 7 + 3
    with in_double():
        cos, sin = LlamaRotaryEmbedding(config)(q, at[None])
        theirs_q, theirs_k = apply_rotary_pos_emb(q, k, cos, sin)
    ours = rope(32, base=5e5, scaling=scaling, factor=4.0 if scaling == "yarn" else None, original_context=128).rotary
    assert ours is not None
    np.testing.assert_allclose(ours.rotate(q.numpy(), at, side="query"), theirs_q.numpy(), atol=1e-11)
    np.testing.assert_allclose(ours.rotate(k.numpy(), at, side="key"), theirs_k.numpy(), atol=1e-11)


def test_gpt_neox_turns_the_first_quarter() -> None:
    q, k = vectors(1, 2, 20, 64, seed=3), vectors(1, 2, 20, 64, seed=4)
    at = torch.arange(20)
    ours = rope(64, partial=0.25).rotary
    assert ours is not None
    angle = at[:, None] * torch.from_numpy(ours.frequencies())
    emb = torch.cat([angle, angle], dim=-1)[None]
    theirs_q, theirs_k = modeling_gpt_neox.apply_rotary_pos_emb(q, k, emb.cos(), emb.sin())
    np.testing.assert_allclose(ours.rotate(q.numpy(), at, side="query"), theirs_q.numpy(), atol=1e-12)
    np.testing.assert_allclose(ours.rotate(k.numpy(), at, side="key"), theirs_k.numpy(), atol=1e-12)


def test_gptj_turns_interleaved_pairs() -> None:
    q_BNHR = vectors(1, 30, 2, 16, seed=5)
    theirs_sin_cos = modeling_gptj.create_sinusoidal_positions(30, 16)
    sin, cos = torch.split(theirs_sin_cos[None], 8, dim=-1)
    theirs = modeling_gptj.apply_rotary_pos_emb(q_BNHR.float(), sin, cos)
    ours = rope(16, pairing="interleaved").rotary
    assert ours is not None
    ours_q = ours.rotate(q_BNHR.numpy().transpose(0, 2, 1, 3), np.arange(30), side="query")
    np.testing.assert_allclose(ours_q.transpose(0, 2, 1, 3), theirs.numpy(), atol=2e-5)
    wrong = rope(16, pairing="half").rotary
    assert wrong is not None
    wrong_q = wrong.rotate(q_BNHR.numpy().transpose(0, 2, 1, 3), np.arange(30), side="query")
    assert np.abs(wrong_q.transpose(0, 2, 1, 3) - theirs.numpy()).max() > 0.1


def test_mla_logits_are_deepseeks() -> None:
    """DeepSeek permutes channels while turning them, so its vectors differ from ours, but no logit does."""
    q, k = vectors(1, 2, 25, 24, seed=6), vectors(1, 2, 25, 24, seed=7)
    at = torch.arange(25)
    ours = mla(16, 8).rotary
    assert ours is not None
    angle = at[:, None] * torch.from_numpy(ours.frequencies())
    emb = torch.cat([angle, angle], dim=-1)[None]
    theirs_q, theirs_k = apply_rotary_pos_emb_interleave(q[..., 16:], k[..., 16:], emb.cos(), emb.sin())
    theirs = q[..., :16] @ k[..., :16].mT + theirs_q @ theirs_k.mT
    ours_q, ours_k = (ours.rotate(x.numpy(), at, side=side) for x, side in ((q, "query"), (k, "key")))  # type: ignore[arg-type]
    np.testing.assert_allclose(ours_q @ ours_k.swapaxes(-1, -2), theirs.numpy(), atol=1e-12)
