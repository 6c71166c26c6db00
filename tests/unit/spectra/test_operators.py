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
    assert "NOT converged" in str(rough)
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
    with pytest.raises(BadValue, match="9 entries"):
        operators.toeplitz(np.ones(4), 5, 5)
    with pytest.raises(BadValue, match=r"keys.*queries"):
        operators.causal_product(np.ones((3, 2)), np.ones((4, 2)))
    with pytest.raises(BadValue, match=r"keys.*queries"):
        operators.softmax_operator(np.ones((3, 2)), np.ones((4, 2)), causal=True)
    with pytest.raises(BadValue, match="entries"):
        operators.softmax_operator(np.ones((3, 2)), np.ones((4, 2)), np.ones(3))
    with pytest.raises(BadValue, match="added"):
        operators.product(np.ones((3, 2)), np.ones((4, 2))) + operators.product(np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(BadValue, match="count"):
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


def matrix(dense: np.ndarray) -> Operator:
    return Operator(dense.shape, lambda x: dense @ x, lambda y: dense.T @ y)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(7, 12), (12, 7), (1, 5), (5, 1), (40, 40)])
@pytest.mark.parametrize("block", [1, 3, 50])
def test_values_and_residuals_of_any_matrix(shape: tuple[int, int], block: int) -> None:
    dense = np.random.default_rng(0).standard_normal(shape)
    theirs = scipy.linalg.svdvals(dense)
    for count in (1, 3, 100):
        found = top_singular_values(matrix(dense), count, block=block)
        number = min(count, *shape)
        np.testing.assert_allclose(found.values, theirs[:number], rtol=1e-8)
        assert found.converged
        assert found.residuals.shape == (number,)
        assert (found.residuals <= 1e-8 * theirs[0]).all()
        assert found.rough_passes == 0
        assert 1 <= found.passes <= min(shape) + 1


def test_what_a_search_is_unless_told() -> None:
    dense = np.random.default_rng(1).standard_normal((30, 20))
    silent = top_singular_values(matrix(dense))
    told = top_singular_values(matrix(dense), 4, tolerance=1e-8, max_passes=300, block=1, seed=0)
    np.testing.assert_array_equal(silent.values, told.values)
    np.testing.assert_array_equal(silent.residuals, told.residuals)
    assert (silent.passes, len(silent.values)) == (told.passes, 4)
    for wrong in ({"count": 0}, {"count": -1}, {"block": 0}, {"max_passes": 0}):
        with pytest.raises(BadValue):
            top_singular_values(matrix(dense), **wrong)
    one = top_singular_values(matrix(dense), 1, max_passes=1)
    assert (one.passes, one.converged) == (1, False)
    rough = top_singular_values(matrix(dense), 4, tolerance=1e-2)
    assert rough.passes < silent.passes


def test_a_pass_is_counted_for_every_product() -> None:
    dense = np.random.default_rng(2).standard_normal((50, 50))
    made: list[int] = []

    def times(x: np.ndarray) -> np.ndarray:
        made.append(x.shape[1])
        return dense @ x

    found = top_singular_values(Operator((50, 50), times, lambda y: dense.T @ y), 3, block=2)
    assert len(made) == found.passes + 1  # one more to read the values from A itself
    assert set(made[:-1]) == {2}
    assert made[-1] == 3


def test_a_residual_is_that_of_the_triplet() -> None:
    """Stopped early: within the residual of each value there is a true one."""
    dense = np.random.default_rng(3).standard_normal((60, 60))
    theirs = scipy.linalg.svdvals(dense)
    found = top_singular_values(matrix(dense), 4, max_passes=8)
    assert not found.converged
    for value, residual in zip(found.values, found.residuals, strict=True):
        assert 1e-6 < residual <= value
        assert np.abs(theirs - value).min() <= residual * (1 + 1e-9)
    assert (np.diff(found.values) <= 0).all()


def test_values_that_repeat_and_spaces_that_end() -> None:
    """The identity's Krylov space has one dimension: the search starts afresh until it has as many as asked for."""
    found = top_singular_values(matrix(np.eye(9)), 4)
    np.testing.assert_allclose(found.values, np.ones(4), rtol=1e-12)
    assert found.converged
    low = np.zeros((9, 9))
    low[0, 0], low[1, 1] = 3.0, 2.0
    np.testing.assert_allclose(top_singular_values(matrix(low), 4).values, [3, 2, 0, 0], atol=1e-12)


def test_many_passes_outgrow_the_space_held_at_first() -> None:
    kernel = np.exp(-0.3 * np.abs(np.subtract.outer(np.arange(150), np.arange(150))))
    found = top_singular_values(matrix(kernel), 3, block=3)
    assert found.passes * 3 > 32
    np.testing.assert_allclose(found.values, scipy.linalg.svdvals(kernel)[:3], rtol=1e-8)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 130])
def test_running_sums_over_whole_and_broken_blocks(n: int) -> None:
    random = np.random.default_rng(n)
    q, k, x = random.standard_normal((n, 3)), random.standard_normal((n, 3)), random.standard_normal((n, 2))
    operator, dense = operators.causal_product(q, k), np.tril(q @ k.T)
    np.testing.assert_allclose(operator.times(x), dense @ x, atol=1e-11 * n)
    np.testing.assert_allclose(operator.times_transposed(x), dense.T @ x, atol=1e-11 * n)
    assert operator.times(x[:, 0]).shape == (n,)


def test_sums_of_operators_have_one_shape() -> None:
    a, b = np.random.default_rng(4).standard_normal((2, 4, 6))
    both = matrix(a) + matrix(b)
    x, y = np.ones(6), np.ones(4)
    np.testing.assert_allclose(both.times(x), (a + b) @ x)
    np.testing.assert_allclose(both.times_transposed(y), (a + b).T @ y)
    image, gram = both.with_gram(x)
    np.testing.assert_allclose(image, (a + b) @ x)
    np.testing.assert_allclose(gram, (a + b).T @ (a + b) @ x)
    assert both.shape == (4, 6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("band", [1, 4, 9, 64])
def test_softmax_in_bands_of_any_size(band: int, causal: bool) -> None:
    random = np.random.default_rng(5)
    q, k, b = random.standard_normal((9, 3)), random.standard_normal((9, 3)), random.standard_normal(17)
    logits = q @ k.T + scipy.linalg.toeplitz(b[8:], b[8::-1])
    dense = dense_softmax(np.where(np.tri(9) > 0, logits, -np.inf) if causal else logits)
    operator = operators.softmax_operator(q, k, b, causal=causal, band=band)
    x = random.standard_normal((9, 2))
    for form, digits in ((operator, 1e-12), (operator.rough, 1e-5)):
        assert form is not None
        np.testing.assert_allclose(form.times(x), dense @ x, atol=digits)
        np.testing.assert_allclose(form.times_transposed(x), dense.T @ x, atol=digits)
        image, gram = form.with_gram(x)
        np.testing.assert_allclose(image, dense @ x, atol=digits)
        np.testing.assert_allclose(gram, dense.T @ (dense @ x), atol=digits)
    for wrong in (b[1:], np.append(b, 1.0)):
        with pytest.raises(BadValue):
            operators.softmax_operator(q, k, wrong)


def test_a_block_is_made_orthonormal_off_a_basis() -> None:
    random = np.random.default_rng(6)
    basis = np.linalg.qr(random.standard_normal((10, 3)))[0]
    block = random.standard_normal((10, 4))
    block[:, 2] = block[:, 0] + 2 * block[:, 1] + basis[:, 0]  # depends on the others and the basis
    found, link = operators._orthonormal(block, basis)
    assert found.shape == (10, 3)
    np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-13)
    np.testing.assert_allclose(basis.T @ found, 0, atol=1e-13)
    np.testing.assert_allclose(found @ link, block - basis @ (basis.T @ block), atol=1e-12)
    nothing, _ = operators._orthonormal(np.zeros((10, 2)), basis)
    assert nothing.shape == (10, 0)
