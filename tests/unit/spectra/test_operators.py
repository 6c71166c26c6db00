"""Operators against the dense matrices they stand for."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.spectra import operators
from toposcope.spectra.operators import Operator, top_singular_values

seeds = st.integers(0, 2**32 - 1)


def dense_softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def cases(seed: int, n: int, h: int) -> dict[str, tuple[Operator, np.ndarray]]:
    """Every operator beside its dense matrix."""
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((n, h)), random.standard_normal((n, h))
    entries = random.standard_normal(2 * n - 1)
    bias = np.array([[entries[i - j + n - 1] for j in range(n)] for i in range(n)])
    hidden = np.where(np.tril(np.ones((n, n))) > 0, 0.0, -np.inf)
    return {
        "product": (operators.product(q, k), q @ k.T),
        "toeplitz": (operators.toeplitz(entries, n, n), bias),
        "causal toeplitz": (operators.toeplitz(entries, n, n, causal=True), np.tril(bias)),
        "biased": (operators.biased(q, k, entries), q @ k.T + bias),
        "causal": (operators.causal_product(q, k), np.tril(q @ k.T)),
        "causal biased": (operators.causal_biased(q, k, entries), np.tril(q @ k.T + bias)),
        "hadamard": (operators.hadamard_toeplitz(q, k, entries), (q @ k.T) * bias),
        "softmax": (operators.softmax_operator(q, k, band=7), dense_softmax(q @ k.T)),
        "biased softmax": (operators.softmax_operator(q, k, entries, band=5), dense_softmax(q @ k.T + bias)),
        "causal softmax": (
            operators.softmax_operator(q, k, entries, causal=True, band=16),
            dense_softmax(q @ k.T + bias + hidden),
        ),
    }


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 150), st.integers(1, 9), st.integers(1, 3))
def test_products_and_transposed_products(seed: int, n: int, h: int, vectors: int) -> None:
    random = np.random.default_rng(seed + 1)
    x, y = random.standard_normal((n, vectors)), random.standard_normal((n, vectors))
    for name, (operator, dense) in cases(seed, n, h).items():
        slack = 1e-12 * np.linalg.norm(dense) * n
        np.testing.assert_allclose(operator.times(x), dense @ x, atol=slack, err_msg=name)
        np.testing.assert_allclose(operator.times_transposed(y), dense.T @ y, atol=slack, err_msg=name)
        np.testing.assert_allclose(operator.times(x[:, 0]), dense @ x[:, 0], atol=slack, err_msg=name)
        image, gram = operator.with_gram(x)
        np.testing.assert_allclose(image, dense @ x, atol=slack, err_msg=name)
        np.testing.assert_allclose(gram, dense.T @ (dense @ x), atol=slack * np.linalg.norm(dense), err_msg=name)


@pytest.mark.parametrize(("n", "m"), [(5, 9), (9, 5), (1, 4), (4, 1)])
def test_rectangular_toeplitz_and_softmax(n: int, m: int) -> None:
    random = np.random.default_rng(n)
    q, k, entries = random.standard_normal((n, 3)), random.standard_normal((m, 3)), random.standard_normal(n + m - 1)
    bias = np.array([[entries[i - j + m - 1] for j in range(m)] for i in range(n)])
    x, y = random.standard_normal(m), random.standard_normal(n)
    np.testing.assert_allclose(operators.toeplitz(entries, n, m).times(x), bias @ x, atol=1e-12)
    np.testing.assert_allclose(operators.toeplitz(entries, n, m).times_transposed(y), bias.T @ y, atol=1e-12)
    attention = dense_softmax(q @ k.T + bias)
    np.testing.assert_allclose(operators.softmax_operator(q, k, entries, band=2).times(x), attention @ x, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(2, 90), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_top_values_equal_dense(seed: int, n: int, h: int, count: int, block: int) -> None:
    for name, (operator, dense) in cases(seed, n, h).items():
        ours = top_singular_values(operator, count, block=block, max_passes=n + 5)
        theirs = scipy.linalg.svdvals(dense)
        assert ours.converged, name
        np.testing.assert_allclose(ours.values, theirs[: len(ours.values)], atol=1e-9 * theirs[0], err_msg=name)
        assert len(ours.values) == min(count, n)


def test_the_cap_ends_the_search_and_the_residual_tells() -> None:
    """A smooth summable kernel converges slowly: three passes do not do, and the residual bounds the error."""
    n = 400
    operator = operators.toeplitz(np.exp(-0.02 * np.abs(np.arange(-n + 1, n))), n, n)
    rough = top_singular_values(operator, 2, max_passes=3)
    exact = scipy.linalg.svdvals(scipy.linalg.toeplitz(np.exp(-0.02 * np.arange(n))))
    assert rough.passes == 3
    assert not rough.converged
    assert "NOT converged after 3 passes" in str(rough)
    assert all(np.abs(exact - value).min() <= r for value, r in zip(rough.values, rough.residuals, strict=True))
    fine = top_singular_values(operator, 2)
    assert fine.converged
    assert "residual" in str(fine)
    np.testing.assert_allclose(fine.values, exact[:2], rtol=1e-12)


def test_the_zero_matrix_and_rank_one() -> None:
    zero = top_singular_values(operators.product(np.zeros((6, 2)), np.ones((6, 2))), 3)
    np.testing.assert_array_equal(zero.values, np.zeros(3))
    one = top_singular_values(operators.product(np.ones((6, 1)), np.ones((6, 1))), 3)
    np.testing.assert_allclose(one.values, [6, 0, 0], atol=1e-12)


def test_scipy_can_use_an_operator() -> None:
    operator, dense = cases(3, 60, 4)["causal biased"]
    values = scipy.sparse.linalg.svds(operator.linear_operator(), 3, return_singular_vectors=False)
    np.testing.assert_allclose(np.sort(values)[::-1], scipy.linalg.svdvals(dense)[:3], rtol=1e-9)


def test_softmax_holds_a_band_at_a_time() -> None:
    n = 2000
    random = np.random.default_rng(0)
    q, k = random.standard_normal((n, 4)), random.standard_normal((n, 4))
    operator = operators.softmax_operator(q, k, band=50)
    tracemalloc.start()
    operator.with_gram(np.ones((n, 1)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * n * 8 / 8


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(BadValue, match="9 entries, got 4"):
        operators.toeplitz(np.ones(4), 5, 5)
    with pytest.raises(BadValue, match="as many keys as queries"):
        operators.causal_product(np.ones((3, 2)), np.ones((4, 2)))
    with pytest.raises(BadValue, match="as many keys as queries"):
        operators.softmax_operator(np.ones((3, 2)), np.ones((4, 2)), causal=True)
    with pytest.raises(BadValue, match="entries"):
        operators.softmax_operator(np.ones((3, 2)), np.ones((4, 2)), np.ones(3))
    with pytest.raises(BadValue, match="added"):
        operators.product(np.ones((3, 2)), np.ones((4, 2))) + operators.product(np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(BadValue, match="at least 1"):
        top_singular_values(operators.product(np.ones((3, 2)), np.ones((4, 2))), 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("scale", "rough"), [(1.0, True), (1e5, False)])
def test_a_search_that_begins_roughly_ends_exactly(causal: bool, scale: float, rough: bool) -> None:
    """Single precision is where it begins, where logits are not too large for it; the values are those of float64."""
    draw = np.random.default_rng(5).standard_normal
    q, k, b = draw((90, 6)) * scale, draw((90, 6)), draw(179)
    logits = q @ k.T + scipy.linalg.toeplitz(b[89:], b[89::-1])
    logits = np.where(np.tri(90) > 0, logits, -np.inf) if causal else logits
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    exact = scipy.linalg.svdvals(weights / weights.sum(axis=1, keepdims=True))
    found = top_singular_values(operators.softmax_operator(q, k, b, causal=causal), 4, block=4)
    assert (found.rough_passes > 0) == rough
    assert found.converged
    np.testing.assert_allclose(found.values, exact[:4], atol=1e-11 * exact[0])


@pytest.mark.parametrize(("size", "single"), [(4900.0, True), (5100.0, False)])
@pytest.mark.parametrize("where", ["content", "bias"])
def test_single_precision_only_where_logits_are_below_ten_thousand(size: float, single: bool, where: str) -> None:
    """One token: the bound is its logit and, as much again, the logarithm of its row's sum, which cancels it."""
    if where == "content":
        operator = operators.softmax_operator([[size]], [[1.0]])
    else:
        operator = operators.softmax_operator([[0.0]], [[0.0]], [size])
    assert (operator.rough is not None) == single


def test_the_guard_sees_large_logits_of_either_sign_and_on_any_row() -> None:
    for row, sign in ((0, 1), (5, -1)):
        q = np.ones((6, 2)) * 0.1
        q[row] = sign * 2e4
        assert operators.softmax_operator(q, np.ones((6, 2))).rough is None
        bias = np.zeros(11)
        bias[2 * row] = sign * 2e4
        assert operators.softmax_operator(np.zeros((6, 2)), np.ones((6, 2)), bias).rough is None
    assert operators.softmax_operator(np.full((6, 2), 0.1), np.ones((6, 2)), np.zeros(11)).rough is not None


def test_the_rough_form_keeps_three_digits_below_the_guard() -> None:
    """Logits as large as the guard lets in: what single precision makes of the attention is right to 1e-3."""
    random = np.random.default_rng(4)
    q, k = random.standard_normal((40, 8)), random.standard_normal((40, 8))
    q *= 2000 / np.abs(q @ k.T).max()
    operator = operators.softmax_operator(q, k)
    assert operator.rough is not None
    x = random.standard_normal((40, 3))
    assert np.abs(operator.rough.times(x) - operator.times(x)).max() <= 1e-3 * np.abs(x).max()
    assert np.abs(operator.rough.times(x) - operator.times(x)).max() > 0  # it is another precision


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_converged_is_relative_to_the_matrix(size: float) -> None:
    """Three passes do not do, however small or large the matrix is; where they do, they do for all sizes."""
    kernel = np.exp(-0.02 * np.abs(np.arange(-399, 400)))
    for passes, done in ((3, False), (200, True)):
        plain, scaled = (
            top_singular_values(operators.toeplitz(factor * kernel, 400, 400), 2, max_passes=passes)
            for factor in (1.0, size)
        )
        assert (plain.converged, scaled.converged) == (done, done)
        np.testing.assert_allclose(scaled.values / size, plain.values, rtol=1e-9)


def test_no_more_values_than_the_matrix_has() -> None:
    q, k = np.random.default_rng(6).standard_normal((2, 3, 5))
    found = top_singular_values(operators.product(q, k[:2]), 10)
    assert found.converged
    np.testing.assert_allclose(found.values, scipy.linalg.svdvals(q @ k[:2].T), rtol=1e-10)
