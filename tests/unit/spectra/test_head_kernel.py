"""The mean positional kernel: planted offsets, the mean of real logits, and weights against samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.encodings import NONE, Pairing, alibi, combine, fire_init, mla, rope, sinusoidal, xpos
from toposcope.spectra.head_kernel import TokenRows, _peak, from_covariance, from_mean, kernel

seeds = st.integers(0, 2**32 - 1)


def looking_back(t: float, h: int, pairing: Pairing, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A query and a key whose rotary logit is largest at i - j = t: the key is the query turned t steps on."""
    rotary = rope(h, pairing=pairing).rotary
    assert rotary is not None
    q = random.standard_normal((1, h)) + 0.5
    return q, rotary.rotate(q, [t], side="query")


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(-40, 40), st.sampled_from([8, 16, 64]), st.sampled_from(["half", "interleaved"]))
def test_a_head_built_to_look_t_back_is_reported_so(seed: int, t: int, h: int, pairing: Pairing) -> None:
    random = np.random.default_rng(seed)
    q, k = looking_back(t, h, pairing, random)
    found = kernel(q, k, rope(h, pairing=pairing), context=64, causal=False)
    assert found.peak_offset == t
    assert found.peak_value == pytest.approx(found.a_F.sum())
    assert str(abs(t)) in str(found)
    assert ("back" in str(found), "ahead" in str(found)) == (t > 0, t < 0)
    # the same head from weights: Q = identity-like map, K = turned Q
    width = 12
    basis = random.standard_normal((h, width))
    rotary = rope(h, pairing=pairing).rotary
    assert rotary is not None
    K = rotary.rotate(basis.T, np.full(width, t), side="query").T
    assert from_covariance(basis, K, None, rope(h, pairing=pairing), context=64, causal=False).peak_offset == t
    mean = random.standard_normal(width)
    assert from_mean(basis, K, mean, rope(h, pairing=pairing), context=64, causal=False).peak_offset == t


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 9), st.integers(1, 7), st.integers(0, 3))
def test_g_is_the_mean_logit_at_each_offset(seed: int, n: int, m: int, kind: int) -> None:
    """The mean over all pairs of rotated content at offset t, plus what does not turn, is the whole kernel."""
    random = np.random.default_rng(seed)
    encoding = [
        rope(8, base=30.0, scaling="yarn", factor=4.0, original_context=16),
        rope(8, partial=0.5),
        xpos(8),
        mla(4, 4),
    ][kind]
    q, k = random.standard_normal((n, 8)), random.standard_normal((m, 8))
    found = kernel(q, k, encoding, context=20, scale=0.3, causal=False)
    rotary = encoding.rotary
    assert rotary is not None
    for t, value in zip(found.offsets_T, found.total_T, strict=True):
        turned = rotary.rotate(q, np.full(n, t), side="query", context=20)
        still = rotary.rotate(k, np.zeros(m), side="key", context=20)
        assert value == pytest.approx(0.3 * (turned @ still.T).mean(), abs=1e-10)
    if rotary.decay_F is None:
        assert (np.abs(found.g_T) <= found.a_F.sum() * (1 + 1e-12)).all()
    assert found.query_energy_F.sum() == pytest.approx((q[:, rotary.pairs_F2.ravel()] ** 2).sum(axis=1).mean())
    assert found.key_energy_F.sum() == pytest.approx((k[:, rotary.pairs_F2.ravel()] ** 2).sum(axis=1).mean())


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_weights_agree_with_tokens_drawn(seed: int) -> None:
    """Exact sums over a finite set of tokens: independent pairs need the mean, equal ones the second moment."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((30, 6)) + random.standard_normal(6)
    Q, K, bias = random.standard_normal((8, 6)), random.standard_normal((8, 6)), random.standard_normal(8)
    encoding = rope(8)
    data = kernel(x @ Q.T + bias, x @ K.T - bias, encoding)
    ours = from_mean(Q, K, x.mean(axis=0), encoding, q_bias=bias, k_bias=-bias)
    np.testing.assert_allclose(ours.a_F, data.a_F, atol=1e-10)
    np.testing.assert_allclose(ours.g_T, data.g_T, atol=1e-10)
    second = x.T @ x / len(x)
    same = from_covariance(Q, K, second, encoding)
    rotary = encoding.rotary
    assert rotary is not None
    z, w = x @ Q.T, x @ K.T
    for t in (0, 1, 17):
        turned = rotary.rotate(z, np.full(len(x), t), side="query")
        assert same.g_T[t] == pytest.approx((turned * w).sum(axis=1).mean(), abs=1e-9)
    first, last = rotary.pairs_F2.T
    np.testing.assert_allclose(same.query_energy_F, (z[:, first] ** 2 + z[:, last] ** 2).mean(axis=0))
    np.testing.assert_allclose(same.key_energy_F, (w[:, first] ** 2 + w[:, last] ** 2).mean(axis=0))
    diagonal = random.uniform(0.1, 1, 6)
    thin, full = (from_covariance(Q, K, C, encoding) for C in (diagonal, np.diag(diagonal)))
    rows = from_covariance(Q, K, TokenRows(np.sqrt(6) * np.diag(np.sqrt(diagonal)), 6), encoding)
    for name in ("g_T", "query_energy_F", "key_energy_F"):
        np.testing.assert_allclose(getattr(thin, name), getattr(full, name), atol=1e-12)
        np.testing.assert_allclose(getattr(rows, name), getattr(full, name), atol=1e-12)
    q, k = Q @ x.mean(axis=0) + bias, K @ x.mean(axis=0) - bias
    np.testing.assert_allclose(ours.query_energy_F, q[first] ** 2 + q[last] ** 2)
    np.testing.assert_allclose(ours.key_energy_F, k[first] ** 2 + k[last] ** 2)


def test_a_decay_and_a_bias_move_the_peak() -> None:
    ones = np.ones((1, 4))
    assert kernel(ones, ones, alibi(2), causal=False).peak_offset == 0
    assert kernel(ones, ones, NONE).peak_offset is None
    assert "peaks" not in str(kernel(ones, ones, NONE))
    assert kernel(ones, ones, NONE).constant == 4
    turned_off = kernel(ones, ones, rope(4, turning_heads=1), head=1)
    assert turned_off.peak_offset is None
    assert len(turned_off.a_F) == 0
    assert kernel(np.zeros((2, 4)), ones, rope(4)).peak_offset is None
    one = kernel(ones, ones, rope(4), context=1)
    assert one.offsets_T.tolist() == [0]
    assert one.peak_offset is None


def test_of_equal_peaks_the_nearest_is_named() -> None:
    """cos(w t) with w = 1 / divisor of a whole period repeats: offset 0 wins, and -3 against +5 is -3."""
    encoding = rope(2, divisors=[8 / (2 * np.pi)])
    assert kernel([[1.0, 0.0]], [[1.0, 0.0]], encoding, context=30, causal=False).peak_offset == 0
    key = np.array([[np.cos(2 * np.pi * 5 / 8), np.sin(2 * np.pi * 5 / 8)]])
    assert kernel([[1.0, 0.0]], key, encoding, context=30, causal=False).peak_offset == -3
    assert kernel([[1.0, 0.0]], key, encoding, context=30).peak_offset == 5


def test_bad_input_is_refused() -> None:
    good = np.ones((3, 4))
    with pytest.raises(BadValue, match="NaN"):
        kernel(good * np.nan, good, rope(4))
    with pytest.raises(BadValue, match="width 6"):
        kernel(good, good, rope(6))
    with pytest.raises(BadValue, match="context"):
        kernel(good, good, rope(4), context=0)
    with pytest.raises(BadValue, match="sinusoidal"):
        kernel(good, good, sinusoidal(4))
    with pytest.raises(BadValue, match="both positions"):
        kernel(good, good, fire_init(2, seed=0))
    with pytest.raises(BadValue, match="one shape"):
        from_mean(np.ones((4, 3)), np.ones((4, 2)), np.ones(3), rope(4))
    with pytest.raises(BadValue, match=r"mean.*2"):
        from_mean(np.ones((4, 3)), np.ones((4, 3)), np.ones(2), rope(4))
    with pytest.raises(BadValue, match="covariance"):
        from_covariance(np.ones((4, 3)), np.ones((4, 3)), np.ones((2, 2)), rope(4))


def test_what_a_kernel_is_unless_told() -> None:
    """128 offsets into the past, unscaled, of the first head."""
    random = np.random.default_rng(0)
    q, k = random.standard_normal((3, 8)), random.standard_normal((4, 8))
    Q, K, mean = random.standard_normal((8, 5)), random.standard_normal((8, 5)), random.standard_normal(5)
    encoding = rope(8, turning_heads=1)
    told = {"context": 128, "causal": True, "scale": 1.0, "head": 0}
    for silent, spelled in (
        (kernel(q, k, encoding), kernel(q, k, encoding, **told)),  # type: ignore[arg-type]
        (from_mean(Q, K, mean, encoding), from_mean(Q, K, mean, encoding, **told)),  # type: ignore[arg-type]
        (from_covariance(Q, K, None, encoding), from_covariance(Q, K, None, encoding, **told)),  # type: ignore[arg-type]
    ):
        np.testing.assert_array_equal(silent.offsets_T, np.arange(128))
        np.testing.assert_array_equal(silent.g_T, spelled.g_T)
        assert silent.peak_offset == spelled.peak_offset
        assert len(silent.a_F) == 4


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("context", [1, 2, 9])
def test_offsets_of_a_context(context: int, causal: bool) -> None:
    found = kernel(np.ones((1, 4)), np.ones((1, 4)), rope(4), context=context, causal=causal)
    np.testing.assert_array_equal(found.offsets_T, np.arange(0 if causal else 1 - context, context))
    with pytest.raises(BadValue):
        kernel(np.ones((1, 4)), np.ones((1, 4)), rope(4), context=-1)


def test_sizes_and_phases_are_those_of_the_mean_products() -> None:
    random = np.random.default_rng(1)
    q, k = random.standard_normal((5, 8)), random.standard_normal((6, 8))
    encoding = rope(8, pairing="interleaved", rotary_dim=6, scaling="yarn", factor=4.0, original_context=16)
    assert encoding.rotary is not None
    found = kernel(q, k, encoding, scale=-0.5, context=12)
    size = encoding.rotary.attention_factor
    assert size != 1
    for f in range(3):
        z, w = (x[:, 2 * f] + 1j * x[:, 2 * f + 1] for x in (q, k))
        mean = -0.5 * size**2 * (z[:, None] * w.conj()).mean()
        assert found.a_F[f] * np.exp(1j * found.phi_F[f]) == pytest.approx(mean, rel=1e-12)
    assert found.constant == pytest.approx(-0.5 * (q[:, 6:].mean(axis=0) @ k[:, 6:].mean(axis=0)), rel=1e-12)
    np.testing.assert_allclose(found.frequencies_F, encoding.rotary.frequencies(12))
    waves = np.cos(np.outer(found.offsets_T, found.frequencies_F) + found.phi_F) @ found.a_F
    np.testing.assert_allclose(found.g_T, waves, atol=1e-12)


def test_a_bias_is_added_and_decides_the_peak() -> None:
    ones = np.ones((1, 4))
    encoding = combine(rope(4, base=30.0), alibi(3, slopes=[0.5, -0.1, 2.0], symmetric=False))
    assert encoding.bias is not None
    for head in range(3):
        found = kernel(ones, ones, encoding, context=20, causal=False, head=head)
        bias = -np.array([0.5, -0.1, 2.0])[head] * found.offsets_T
        np.testing.assert_allclose(found.bias_T, bias)
        np.testing.assert_allclose(found.total_T, found.g_T + bias + found.constant)
        best = int(np.argmax(found.g_T + bias))
        assert found.peak_offset == found.offsets_T[best]
        assert found.peak_value == pytest.approx((found.g_T + bias)[best])
    plain = kernel(ones, ones, alibi(1), context=5)
    np.testing.assert_array_equal(plain.g_T, 0.0)
    assert plain.constant == 4
    np.testing.assert_allclose(plain.total_T, 4 - 2.0**-8 * np.arange(5))


@pytest.mark.parametrize(("spread", "flat"), [(0.5e-12, True), (2e-12, False)])
def test_a_kernel_is_flat_up_to_rounding(spread: float, flat: bool) -> None:
    """Relative to the larger of the weights and the kernel itself."""
    for size in (1.0, 7.0):
        offset, value = _peak(np.array([0.0, 1.0, 2.0]), np.array([0.0, size * spread, 0.0]), size)
        assert (offset is None) == (value is None) == flat
        offset, _ = _peak(np.array([0.0, 1.0, 2.0]), size * np.array([1.0, 1 + spread, 1.0]), 0.0)
        assert (offset is None) == flat
    near, top = _peak(np.array([-2.0, 0.0, 1.0, 2.0]), np.array([3.0, 0.0, 3.0 - 1e-12, 3.0]), 1.0)
    assert (near, top) == (1, 3.0)  # of equals the nearest


def test_tokens_in_place_of_their_moments() -> None:
    random = np.random.default_rng(2)
    rows = random.standard_normal((7, 5))
    Q, K = random.standard_normal((4, 5)), random.standard_normal((4, 5))
    tokens = TokenRows(rows, 100)
    assert len(tokens) == 5
    ours, theirs = (from_covariance(Q, K, C, rope(4, rotary_dim=2), context=9) for C in (tokens, rows.T @ rows / 7))
    for name in ("g_T", "query_energy_F", "key_energy_F", "a_F"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-12)
    assert ours.constant == pytest.approx(theirs.constant)
    identity = from_covariance(Q, K, None, rope(4), context=9)
    np.testing.assert_allclose(identity.g_T, from_covariance(Q, K, np.eye(5), rope(4), context=9).g_T, atol=1e-12)
    for wrong in (TokenRows(np.ones((3, 4)), 3), np.ones(4), np.ones((5, 4)), np.ones((5, 5, 5))):
        with pytest.raises(BadValue):
            from_covariance(Q, K, wrong, rope(4))


def test_biases_of_queries_and_keys_are_added_each_for_itself() -> None:
    random = np.random.default_rng(3)
    Q, K, mean, b = (random.standard_normal(shape) for shape in ((4, 5), (4, 5), 5, 4))
    q, k = (Q @ mean)[None], (K @ mean)[None]
    for biases, left, right in (({"q_bias": b}, q + b, k), ({"k_bias": b}, q, k + b), ({}, q, k)):
        ours, theirs = from_mean(Q, K, mean, rope(4), **biases), kernel(left, right, rope(4))  # type: ignore[arg-type]
        np.testing.assert_allclose(ours.g_T, theirs.g_T, atol=1e-12)
        np.testing.assert_allclose(ours.query_energy_F, theirs.query_energy_F)
        np.testing.assert_allclose(ours.key_energy_F, theirs.key_energy_F)


def test_words_for_the_peak() -> None:
    found = kernel(np.ones((1, 4)), np.ones((1, 4)), rope(4), causal=False)
    said = [str(replace(found, peak_offset=offset)) for offset in (None, 0, 1, -1, 12)]
    assert len(set(said)) == 5
    assert "12" in said[4]
    assert "1" in said[2]
    assert "-" not in said[3]
