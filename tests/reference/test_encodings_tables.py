"""Biases and input vectors against the models that use them: T5, BLOOM, MPT, Falcon, Whisper, OPT."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import OPTConfig, T5Config
from transformers.models.bloom import modeling_bloom
from transformers.models.falcon import modeling_falcon
from transformers.models.mpt import modeling_mpt
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.whisper.modeling_whisper import sinusoids

from toposcope.encodings import alibi, alibi_slopes, fire_network, learned, sinusoidal, t5, t5_bucket

DISTANCE = np.arange(-120_000, 120_001)


SETTINGS = [
    (bidirectional, buckets, max_distance)
    for bidirectional in (True, False)
    for buckets in (4, 6, 8, 32, 50, 64, 256, 320)
    for max_distance in (128, 200, 256, 800, 1024, 4096, 65536, 100_000)
    if max_distance > (buckets // 2 if bidirectional else buckets) // 2
]


@pytest.mark.parametrize(("bidirectional", "buckets", "max_distance"), SETTINGS)
def test_every_distance_falls_into_t5s_bucket(bidirectional: bool, buckets: int, max_distance: int) -> None:
    theirs = T5Attention._relative_position_bucket(
        torch.from_numpy(DISTANCE), bidirectional=bidirectional, num_buckets=buckets, max_distance=max_distance
    )
    ours = t5_bucket(DISTANCE, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)
    np.testing.assert_array_equal(ours, theirs.numpy())


@given(buckets=st.integers(4, 512), max_distance=st.integers(3, 200_000), bidirectional=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_settings_give_t5s_buckets(buckets: int, max_distance: int, bidirectional: bool) -> None:
    """Equal wherever the formula is further from a border than float32 can tell.

    Nearer than that, the last bit of the logarithm decides, and that differs between builds of torch.
    """
    per_side = buckets // 2 if bidirectional else buckets
    exact = per_side // 2
    assume(max_distance > exact)
    distance = np.arange(1, 20_000)
    theirs = T5Attention._relative_position_bucket(
        torch.from_numpy(-distance), bidirectional=bidirectional, num_buckets=buckets, max_distance=max_distance
    ).numpy()
    ours = t5_bucket(-distance, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)
    formula = np.log(distance / exact) / math.log(max_distance / exact) * (per_side - exact)
    undecided = np.abs(formula - np.round(formula)) < 4 * np.spacing(formula.astype(np.float32))
    np.testing.assert_array_equal(ours[~undecided], theirs[~undecided])
    assert np.abs(ours - theirs).max() <= 1
    assert undecided.mean() < 0.02  # or the test would say nothing


@pytest.mark.parametrize(
    ("buckets", "max_distance", "distance"),
    [(224, 8192, 3955), (434, 16383, 14250), (323, 32768, 8819), (298, 3988, 2401), (480, 8192, 4482)],
)
def test_float32_decides_on_the_borders(buckets: int, max_distance: int, distance: int) -> None:
    """Here the same formula in float64 says another bucket than the models use."""
    exact = buckets // 2
    double = exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact))
    theirs = T5Attention._relative_position_bucket(
        torch.tensor([-distance]), bidirectional=False, num_buckets=buckets, max_distance=max_distance
    )
    ours = t5_bucket(-distance, bidirectional=False, buckets=buckets, max_distance=max_distance)
    assert int(ours) == int(theirs) != double


@pytest.mark.parametrize("decoder", [True, False])
def test_t5_bias_table(decoder: bool) -> None:
    config = T5Config(d_model=16, num_heads=3, d_kv=4, relative_attention_num_buckets=16, is_decoder=decoder)
    config.relative_attention_max_distance = 40
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    table = module.relative_attention_bias.weight.detach()
    torch.nn.init.normal_(table, generator=torch.Generator().manual_seed(0))
    theirs = module.compute_bias(90, 90)[0].detach().numpy()
    ours = t5(table.numpy(), bidirectional=not decoder, max_distance=40).bias
    assert ours is not None
    np.testing.assert_array_equal(ours.table(np.arange(90), np.arange(90)), theirs)


@pytest.mark.parametrize("heads", [*range(1, 41), 48, 56, 64, 71, 96, 112, 128])
def test_published_slopes(heads: int) -> None:
    ours = alibi_slopes(heads)
    theirs_bloom = modeling_bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    theirs_mpt = -modeling_mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    np.testing.assert_allclose(ours, theirs_bloom.numpy(), rtol=4e-6)  # theirs: powers of a float32
    np.testing.assert_allclose(ours, theirs_mpt.numpy(), rtol=1e-6)


@pytest.mark.parametrize("max_bias", [4.0, 8.0, 16.0])
def test_mpt_changes_the_flattest_slope(max_bias: float) -> None:
    theirs = -modeling_mpt.build_mpt_alibi_tensor(12, 2, alibi_bias_max=max_bias)[:, 0, 0]
    np.testing.assert_allclose(alibi_slopes(12, max_bias), theirs.numpy(), rtol=1e-6)


def causal_softmax(bias_HNM: np.ndarray) -> np.ndarray:
    masked = np.where(np.tri(bias_HNM.shape[1], dtype=bool), bias_HNM, -np.inf)
    weights = np.exp(masked - masked.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("symmetric", [True, False])
def test_bloom_attends_alike(symmetric: bool) -> None:
    """BLOOM adds m j instead of -m (i - j): rows differ by a constant, which softmax does not see."""
    theirs_1M = modeling_bloom.build_alibi_tensor(torch.ones(1, 50), 6, torch.float32).numpy()
    ours = alibi(6, symmetric=symmetric).bias
    assert ours is not None
    ours_HNM = ours.table(np.arange(50), np.arange(50))
    np.testing.assert_allclose(causal_softmax(ours_HNM), causal_softmax(np.repeat(theirs_1M, 50, axis=1)), atol=1e-5)


def test_falcon_rounds_to_bfloat16() -> None:
    """Falcon's bias, to the last bit, and what the rounding does: neighbours far from the start look equidistant."""
    length, heads, head_dim = 700, 12, 64
    theirs = modeling_falcon.build_alibi_tensor(torch.ones(1, length, dtype=torch.long), heads, torch.float32)[
        :, 0
    ].numpy()
    ours = alibi(
        heads, symmetric=False, slope_dtype="bfloat16", table_dtype="bfloat16", scale=1 / math.sqrt(head_dim)
    )
    assert ours.bias is not None
    assert not ours.bias.toeplitz
    at = np.arange(length)
    from_first = ours.bias.table([0], at)[:, 0]  # the row of query 0 has no constant to take away
    np.testing.assert_allclose(from_first, theirs / math.sqrt(head_dim), rtol=1e-15)
    ours_exact = alibi(heads, symmetric=False, slope_dtype="bfloat16", scale=1 / math.sqrt(head_dim)).bias
    assert ours_exact is not None
    assert np.abs(from_first - ours_exact.table([0], at)[:, 0]).max() > 0.05


@pytest.mark.parametrize("width", [4, 64, 384])
def test_whisper_sinusoids(width: int) -> None:
    theirs = sinusoids(100, width)
    ours = sinusoidal(width, layout="half").input
    assert ours is not None
    np.testing.assert_allclose(ours.vectors(np.arange(100)), theirs.numpy(), atol=3e-5)


@pytest.mark.parametrize("width", [2, 8, 65, 128])
def test_the_papers_sinusoids(width: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same), written out."""
    theirs = np.zeros((50, width))
    for position in range(50):
        for channel in range(width):
            angle = position / 10000 ** ((channel - channel % 2) / width)
            theirs[position, channel] = math.cos(angle) if channel % 2 else math.sin(angle)
    ours = sinusoidal(width).input
    assert ours is not None
    np.testing.assert_allclose(ours.vectors(np.arange(50)), theirs, atol=1e-12)


def test_opt_reads_two_rows_further() -> None:
    config = OPTConfig(max_position_embeddings=20, hidden_size=8)
    module = OPTLearnedPositionalEmbedding(config.max_position_embeddings, config.hidden_size)
    theirs = module(torch.ones(1, 20, dtype=torch.long), 0)[0].detach().numpy()
    ours = learned(module.weight.detach().numpy(), offset=2).input
    assert ours is not None
    assert ours.length == 20
    np.testing.assert_array_equal(ours.vectors(np.arange(20)), theirs)


def test_fire_starts_as_a_linear_layer_of_torch_does() -> None:
    """Uniform within one over the root of the inputs: one input, then `hidden` of them."""
    hidden = 4096
    network = fire_network(3, hidden, seed=1)
    torch.manual_seed(0)
    inner, outer = torch.nn.Linear(1, hidden), torch.nn.Linear(hidden, 300)
    ours, theirs = (network[0], network[1], network[2]), (inner.weight, inner.bias, outer.weight)
    for mine, reference in zip(ours, theirs, strict=True):
        drawn = reference.detach().double().numpy()
        for share in (0, 0.25, 0.5, 0.75, 1):
            spread = drawn.max() - drawn.min()
            assert np.quantile(mine, share) == pytest.approx(np.quantile(drawn, share), abs=0.03 * spread)
    assert [part.shape for part in network] == [(hidden,), (hidden,), (3, hidden), (3,)]
    ends = np.concatenate([fire_network(300, hidden, seed=s)[3] for s in range(2)]) * math.sqrt(hidden)
    assert (ends.min(), ends.max()) == pytest.approx((-1, 1), abs=0.03)
    assert not np.array_equal(network[0], network[1])
