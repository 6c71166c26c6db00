"""Folding a norm into Q, K, V equals applying the norm, up to the token's own positive factor."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.spec import LayerSpec, Linear
from toposcope.checkpoints.view import Layer, LayerWeights, Norm


def layer_with(weights: LayerWeights, kind: Literal["self", "cross"] = "self") -> Layer:
    spec = LayerSpec("decoder", 0, 6, 1, 1, 4, 0.5, causal=True, o=Linear("o"), kind=kind)
    return Layer(0, spec, lambda _: weights)


def random_weights(random: np.random.Generator, norm_kind: str, *, biases: bool) -> LayerWeights:
    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal(shape)

    return LayerWeights(
        q_HRD=draw(1, 4, 6),
        k_GRD=draw(1, 4, 6),
        v_GVD=draw(1, 4, 6),
        o_HDV=draw(1, 6, 4),
        q_bias_HR=draw(1, 4) if biases else None,
        k_bias_GR=draw(1, 4) if biases else None,
        v_bias_GV=draw(1, 4) if biases else None,
        input_norm=Norm(norm_kind, 1e-6, draw(6), draw(6) if biases else None),
        output_norm=Norm("rms", 1e-6, draw(6)),
        output_gain=draw(6),
    )


@given(st.integers(0, 10_000), st.sampled_from(["rms", "layer"]), st.booleans())
def test_folded_projections_equal_the_norm_applied(seed: int, kind: str, biases: bool) -> None:
    random = np.random.default_rng(seed)
    weights = random_weights(random, kind, biases=biases)
    layer, x = layer_with(weights), random.standard_normal(6)
    norm = weights.input_norm
    assert norm is not None
    centred = x - x.mean() if kind == "layer" else x
    size = np.sqrt((centred**2).mean() + norm.eps)  # the factor that folding leaves out
    plain, folded = layer.heads[0], fold(layer, layer.heads[0])
    for name in ("q", "k", "v"):
        ours, bias = getattr(folded, name) @ x / size, getattr(folded, f"{name}_bias")
        theirs, own = getattr(plain, name) @ norm(x), getattr(plain, f"{name}_bias")
        np.testing.assert_allclose(
            ours + (0 if bias is None else bias), theirs + (0 if own is None else own), rtol=1e-9, atol=1e-9
        )


def test_what_multiplies_the_output_is_folded_into_o() -> None:
    random = np.random.default_rng(1)
    weights = random_weights(random, "rms", biases=False)
    layer = layer_with(weights)
    assert weights.output_norm is not None
    assert weights.output_norm.gain is not None
    wanted = np.diag(weights.output_gain) @ np.diag(weights.output_norm.gain) @ layer.heads[0].o
    np.testing.assert_allclose(fold(layer, layer.heads[0]).o, wanted)


def test_cross_attention_folds_the_norm_into_the_query_only() -> None:
    weights = random_weights(np.random.default_rng(2), "layer", biases=True)
    layer = layer_with(weights, kind="cross")
    folded = fold(layer, layer.heads[0])
    np.testing.assert_array_equal(folded.k, layer.heads[0].k)
    assert not np.allclose(folded.q, layer.heads[0].q)


def test_a_scalar_gain_is_a_residual_multiplier() -> None:
    weights = replace(
        random_weights(np.random.default_rng(3), "rms", biases=False), output_norm=None, output_gain=0.25
    )
    layer = layer_with(weights)
    np.testing.assert_allclose(fold(layer, layer.heads[0]).o, 0.25 * layer.heads[0].o)


@pytest.mark.parametrize("index", [-2, 1, 7])
def test_a_head_that_does_not_exist(index: int) -> None:
    with pytest.raises(IndexError, match="1 heads"):
        layer_with(random_weights(np.random.default_rng(4), "rms", biases=False)).heads[index]


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("gain", [True, False])
def test_a_norm_on_the_output_is_folded_into_o(kind: str, gain: bool) -> None:
    random = np.random.default_rng(5)
    norm = Norm(kind, 1e-6, random.standard_normal(6) if gain else None)
    plain = replace(random_weights(random, "rms", biases=False), input_norm=None, output_norm=norm, output_gain=None)
    layer = layer_with(plain)
    folded = fold(layer, layer.heads[0])
    value = random.standard_normal(4)
    out = layer.heads[0].o @ value
    centred = out - out.mean() if kind == "layer" else out
    size = np.sqrt((centred**2).mean() + norm.eps)
    np.testing.assert_allclose(folded.o @ value / size, norm(out), rtol=1e-9)
    for name in ("q", "k", "v"):
        np.testing.assert_array_equal(getattr(folded, name), getattr(layer.heads[0], name))


def test_cross_attention_leaves_keys_values_and_their_biases_alone() -> None:
    weights = random_weights(np.random.default_rng(6), "layer", biases=True)
    layer = layer_with(weights, kind="cross")
    plain, folded = layer.heads[0], fold(layer, layer.heads[0])
    own = fold(layer_with(weights), plain)
    for name in ("k", "v", "k_bias", "v_bias"):
        np.testing.assert_array_equal(getattr(folded, name), getattr(plain, name))
        assert not np.allclose(getattr(own, name), getattr(plain, name))
    np.testing.assert_array_equal(folded.q, own.q)
    np.testing.assert_array_equal(folded.q_bias, own.q_bias)


def test_a_norm_without_gain_only_centres() -> None:
    random = np.random.default_rng(7)
    weights = replace(random_weights(random, "rms", biases=True), input_norm=Norm("layer", 1e-6), output_norm=None)
    layer = layer_with(weights)
    plain, folded = layer.heads[0], fold(layer, layer.heads[0])
    centring = np.eye(6) - 1 / 6
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(getattr(folded, name), getattr(plain, name) @ centring, atol=1e-12)
        np.testing.assert_array_equal(getattr(folded, f"{name}_bias"), getattr(plain, f"{name}_bias"))
    rms = replace(weights, input_norm=Norm("rms", 1e-6), output_gain=None)
    layer = layer_with(rms)
    for name in ("q", "k", "v", "o"):
        np.testing.assert_array_equal(getattr(fold(layer, layer.heads[0]), name), getattr(layer.heads[0], name))
