"""Toeplitz matrices by FFT: equal to the dense ones, with the exact properties of the share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.encodings import t5
from toposcope.spectra import toeplitz
from toposcope.spectra.encoding_spectrum import spectrum_of as spectrum
from toposcope.spectra.toeplitz import (
    Spectrum,
    ToeplitzOperator,
    TopValue,
    _power_vector,
    dense_singular_values,
    diagonal_means,
    effective_rank,
    fast_length,
    norm_bounds,
    optimal_circulant,
    symbol,
    symbol_range,
    toeplitz_matrix,
    toeplitz_projection,
    toeplitz_share,
    top_singular_value,
)

sizes = st.integers(1, 70)
seeds = st.integers(0, 2**32 - 1)


def factors(n: int, h: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed).standard_normal
    return draw((n, h)) + shift, draw((n, h)) + shift


def dense_share(s: np.ndarray, causal: bool, centred: bool) -> float:
    visible = np.tril(np.ones_like(s)) if causal else np.ones_like(s)
    s = s * visible
    if centred:
        s = (s - s.sum() / visible.sum()) * visible
    return float((toeplitz_projection(s, causal=causal) ** 2).sum() / (s**2).sum())


@settings(deadline=None)
@given(sizes, st.integers(1, 20), seeds, st.booleans())
def test_diagonal_means_are_those_of_the_dense_matrix(n: int, h: int, seed: int, causal: bool) -> None:
    q, k = factors(n, h, seed)
    s = q @ k.T
    expected = [np.diagonal(s, -t).mean() for t in range(0 if causal else 1 - n, n)]
    np.testing.assert_allclose(diagonal_means(q, k, causal), expected, atol=1e-9 * np.abs(s).max())


@settings(deadline=None)
@given(st.integers(2, 70), st.integers(1, 8), seeds, st.booleans(), st.booleans(), st.sampled_from([0.0, 3.0, 1e4]))
def test_share_is_that_of_the_dense_matrix(
    n: int, h: int, seed: int, causal: bool, centred: bool, shift: float
) -> None:
    q, k = factors(n, h, seed, shift if not centred else 0.0)
    expected = dense_share(q @ k.T, causal, centred)
    assert toeplitz_share(q, k, causal=causal, centred=centred) == pytest.approx(expected, abs=1e-9)
    assert toeplitz_share(-7 * q, 0.1 * k, causal=causal, centred=centred) == pytest.approx(expected, abs=1e-9)


def test_a_small_variation_on_a_large_mean_is_not_lost() -> None:
    """S = 1e12 + small: the centred share is that of the small part, which the raw norms cannot resolve."""
    n = 40
    small = np.random.default_rng(0).standard_normal((n, 3))
    small -= small.mean(axis=0)
    q, k = np.column_stack([np.full(n, 1e6), small]), np.column_stack([np.full(n, 1e6), small])
    found = toeplitz_share(q, k, centred=True)
    assert found == pytest.approx(dense_share(small @ small.T, False, True), rel=1e-6)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 6), seeds, st.booleans())
def test_rotary_logits_of_constant_content_are_toeplitz(n: int, pairs: int, seed: int, causal: bool) -> None:
    draw = np.random.default_rng(seed)
    z, w = (draw.standard_normal(pairs) + 1j * draw.standard_normal(pairs) for _ in range(2))
    turn = np.exp(1j * np.arange(n)[:, None] * draw.uniform(0, 1, pairs))
    q, k = (np.concatenate([(turn * c).real, (turn * c).imag], axis=1) for c in (z, w))
    assert toeplitz_share(q, k, causal=causal) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_constant_and_zero_logits_have_no_share(causal: bool) -> None:
    ones = np.full((9, 3), 0.3)
    assert toeplitz_share(ones, ones, causal=causal) == pytest.approx(1)
    assert toeplitz_share(ones, ones, causal=causal, centred=True) is None
    assert toeplitz_share(0 * ones, ones, causal=causal) is None
    assert toeplitz_share(np.ones((1, 2)), np.ones((1, 2)), causal=causal, centred=True) is None


def test_independent_entries_have_the_share_of_the_dimensions() -> None:
    n, draws = 48, 40
    for causal, expected in ((False, (2 * n - 1) / n**2), (True, 2 / (n + 1))):
        found = [toeplitz_share(*factors(n, 200, seed), causal=causal) for seed in range(draws)]
        assert np.mean([each for each in found if each is not None]) == pytest.approx(expected, rel=0.15)


@settings(deadline=None)
@given(sizes, seeds, st.booleans())
def test_projection_is_an_orthogonal_projection(n: int, seed: int, causal: bool) -> None:
    a, b = np.random.default_rng(seed).standard_normal((2, n, n))
    if causal:
        a, b = np.tril(a), np.tril(b)
    once = toeplitz_projection(a, causal=causal)
    np.testing.assert_allclose(toeplitz_projection(once, causal=causal), once, atol=1e-12)
    assert ((a - once) * toeplitz_projection(b, causal=causal)).sum() == pytest.approx(0, abs=1e-9 * n)


@settings(deadline=None)
@given(sizes, seeds)
def test_products_equal_the_dense_ones(n: int, seed: int) -> None:
    draw = np.random.default_rng(seed).standard_normal
    lags, x = draw(2 * n - 1), draw((n, 3))
    operator, dense = ToeplitzOperator(lags), toeplitz_matrix(lags)
    np.testing.assert_allclose(operator.matvec(x), dense @ x, atol=1e-10)
    np.testing.assert_allclose(operator.rmatvec(x[:, 0]), dense.T @ x[:, 0], atol=1e-10)


@settings(deadline=None)
@given(sizes, seeds, st.booleans())
def test_spectrum_bounds_and_lanczos_agree_with_the_dense_svd(n: int, seed: int, symmetric: bool) -> None:
    lags = np.random.default_rng(seed).standard_normal(2 * n - 1)
    if symmetric:
        lags = lags + lags[::-1]
    expected = np.linalg.svd(toeplitz_matrix(lags), compute_uv=False)
    found = dense_singular_values(lags)
    np.testing.assert_allclose(np.sort(np.abs(found))[::-1], expected, atol=1e-10 * expected[0])
    if symmetric:
        np.testing.assert_allclose(
            np.sort(found), np.linalg.eigvalsh(toeplitz_matrix(lags)), atol=1e-10 * expected[0]
        )
    below, above = norm_bounds(lags)
    assert below <= expected[0] * (1 + 1e-12)
    assert above >= expected[0] * (1 - 1e-12)
    top = top_singular_value(lags)
    distance = np.abs(expected - top.value).min()
    assert distance <= (top.residual + 1e-9) * top.value
    if top.converged:
        assert top.value == pytest.approx(expected[0], rel=1e-5)


@settings(deadline=None)
@given(st.integers(2, 60), st.floats(0.05, 3))
def test_the_optimal_circulant_is_majorised(n: int, slope: float) -> None:
    lags = np.exp(-slope * np.abs(np.arange(1 - n, n)))
    inner, outer = np.sort(optimal_circulant(lags).real)[::-1], dense_singular_values(lags)
    assert (np.cumsum(inner) <= np.cumsum(outer) + 1e-9).all()
    assert inner.sum() == pytest.approx(outer.sum())
    assert (effective_rank(inner) or 0) >= (effective_rank(outer) or 0) - 1e-9


@settings(deadline=None)
@given(st.integers(1, 20), seeds)
def test_the_symbol_holds_all_eigenvalues(reach: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    half = draw.standard_normal(reach)
    lags = np.concatenate([half[::-1], draw.standard_normal(1), half])
    angle = 2 * np.pi * np.arange(12) / 12
    direct = (lags * np.exp(1j * np.arange(-reach, reach + 1) * angle[:, None])).sum(axis=1)
    np.testing.assert_allclose(symbol(lags, 12), direct, atol=1e-10)
    found = symbol_range(lags)
    assert found.least_bound <= found.least <= found.largest <= found.largest_bound
    fine = symbol(lags, 20011).real
    assert found.least_bound <= fine.min()
    assert fine.max() <= found.largest_bound
    longer = np.zeros(2 * 60 - 1)
    longer[59 - reach : 60 + reach] = lags
    values = dense_singular_values(longer)
    assert found.least_bound - 1e-9 <= values.min()
    assert values.max() <= found.largest_bound + 1e-9


def test_exp_alibi_of_section_2_5() -> None:
    for n, least, largest in ((32, 0.1246, 7.316), (128, 0.1244, 7.974), (512, 0.1244, 8.037)):
        values = dense_singular_values(np.exp(-0.25 * np.abs(np.arange(1 - n, n))))
        assert (round(values.min(), 4), round(values.max(), 3)) == (least, largest)


def test_the_sign_of_a_lag_is_query_minus_key() -> None:
    assert toeplitz_matrix([10, 20, 30]).tolist() == [[20, 10], [30, 20]]
    q, k = np.array([[0.0], [1.0]]), np.array([[1.0], [0.0]])  # only the second query meets the first key: t = 1
    assert diagonal_means(q, k).tolist() == pytest.approx([0, 0, 1])


def test_share_of_a_text_whose_logits_fit_no_memory() -> None:
    q, k = factors(131072, 32, 0)  # dense logits would be 128 GiB
    assert toeplitz_share(q, k) == pytest.approx(2 / 131072, rel=0.5)


@settings(deadline=None)
@given(st.integers(1, 5000))
def test_fast_lengths_are_the_smallest_smooth_ones(n: int) -> None:
    def smooth(m: int) -> bool:
        for p in (2, 3, 5):
            while m % p == 0:
                m //= p
        return m == 1

    assert fast_length(n) == next(m for m in range(n, 2 * n + 1) if smooth(m))


def test_numbers_of_a_spectrum() -> None:
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank([5, 0, 0]) == pytest.approx(1)
    assert effective_rank([0.0]) is None
    found = Spectrum(np.array([4.0, -2.0, 1e-20]), 4)
    assert (found.top, found.rank, found.condition, found.negative) == (4, 2, 2, 1)
    assert found.lambda_max_over_n == 1
    zero = Spectrum(np.zeros(3), 3)
    assert (zero.rank, zero.condition, zero.effective_rank) == (0, None, None)


def test_bad_input_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadValue, match="one shape"):
        diagonal_means(np.ones((3, 2)), np.ones((4, 2)))
    with pytest.raises(BadValue, match="NaN"):
        toeplitz_share(np.full((3, 2), np.nan), np.ones((3, 2)))
    with pytest.raises(BadValue, match="2n - 1"):
        ToeplitzOperator([1.0, 2.0])
    with pytest.raises(BadValue, match="refused"):
        dense_singular_values(np.ones(2 * 5000 - 1))
    with pytest.raises(BadValue, match="GB"):
        toeplitz_matrix(np.ones(2 * 100_000 - 1))
    with pytest.raises(BadValue, match="square"):
        toeplitz_projection(np.ones((2, 3)))
    with pytest.raises(BadValue, match="not symmetric"):
        symbol_range([1.0, 2.0, 3.0])


@given(n=st.integers(2, 30), seed=st.integers(0, 999), symmetric=st.booleans())
@settings(max_examples=30, deadline=None)
def test_dense_values_come_from_the_largest_to_the_smallest(n: int, seed: int, symmetric: bool) -> None:
    lags = np.random.default_rng(seed).standard_normal(2 * n - 1)
    lags = lags + lags[::-1] if symmetric else lags
    found = dense_singular_values(lags)
    assert (np.diff(found) <= 0).all()


def test_the_smallest_matrices_need_no_search() -> None:
    assert top_singular_value([-3.0]) == TopValue(3.0, 0.0, 0, True)
    assert top_singular_value([0.0, 1.0, 0.0]) == TopValue(1.0, 0.0, 0, True)


def test_a_bias_of_nothing_has_a_spectrum() -> None:
    """Where position adds 0 to every logit; a search that begins in the zero matrix ended in a traceback."""
    assert top_singular_value(np.zeros(9)) == TopValue(0.0, 0.0, 0, True)
    found = spectrum(t5(np.zeros((32, 2))), [16, 3000])
    assert [point.lambda_max_over_n for point in found.logit_points] == [0.0, 0.0]


def test_a_search_that_was_ended_early_says_so_and_is_near() -> None:
    """One restart does not do where the top values cluster: a plain Lanczos run and its residual are given then."""
    n = 800
    lags = np.exp(-np.abs(np.arange(1.0 - n, n)))
    found = top_singular_value(lags, restarts=1)
    exact = dense_singular_values(lags)
    assert not found.converged
    assert 1e-4 < found.residual < 0.01
    assert np.abs(exact - found.value).min() <= found.residual * found.value
    assert found.value == pytest.approx(exact[0], rel=1e-3)


@pytest.mark.parametrize("n", [255, 256, 257, 600])
@pytest.mark.parametrize("centred", [False, True])
def test_shares_of_texts_longer_than_a_block(n: int, centred: bool) -> None:
    q, k = factors(n, 3, 1)
    expected = dense_share(q @ k.T, True, centred)
    assert toeplitz_share(q, k, causal=True, centred=centred) == pytest.approx(expected, rel=1e-9)


EPS = float(np.finfo(np.float64).eps)


def test_values_at_the_tolerance_are_not_told_from_zero() -> None:
    """n eps times the top: at n = 4 that is 2^-50, which float64 holds exactly."""
    for size, counted in ((2.0**-50, False), (2.0**-50 * (1 + 2 * EPS), True), (0.76 * 2.0**-50, False)):
        found = Spectrum(np.array([size, -1.0, -size]), 4)
        assert found.rank == (3 if counted else 1)
        assert found.negative == (2 if counted else 1)
        assert found.condition == pytest.approx(2.0**50 if counted else 1.0)
        assert found.tolerance == 2.0**-50
        np.testing.assert_array_equal(found.sizes, [1.0, size, size])
    empty = Spectrum(np.array([]), 5)
    assert (empty.top, empty.rank, empty.condition, empty.negative, empty.lambda_max_over_n) == (0, 0, None, 0, 0)
    half = Spectrum(np.array([1.0, -3.0]), 6)
    assert (half.top, half.lambda_max_over_n, half.condition) == (3.0, 0.5, 3.0)


def test_logits_that_cancel_to_rounding_have_no_share() -> None:
    """Entries 1 - (1 - d), visible in 36 of 64 places, against factors of norm 256: zero up to 64 eps * 16/6."""
    q = np.ones((8, 2))
    for steps, there in ((169, False), (172, True)):
        k = np.tile([1.0, -(1 - steps * EPS)], (8, 1))
        assert (toeplitz_share(q, k, causal=True) is not None) == there


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), seeds)
def test_no_share_exceeds_one(n: int, seed: int) -> None:
    weights = np.random.default_rng(seed).standard_normal(4)
    rows = np.tile(weights, (n, 1))
    for causal in (False, True):
        found = toeplitz_share(rows, rows, causal=causal)
        assert found is not None
        assert 1 - 1e-9 < found <= 1


def test_products_need_a_row_for_each_position() -> None:
    operator = ToeplitzOperator(np.arange(7.0))
    for shape in ((3,), (5,), (3, 4), ()):
        for product in (operator.matvec, operator.rmatvec):
            with pytest.raises(BadValue):
                product(np.ones(shape))
    dense = toeplitz_matrix(np.arange(7.0))
    x = np.random.default_rng(0).standard_normal((4, 2, 3))
    np.testing.assert_allclose(operator.matvec(x), np.einsum("ij,jab->iab", dense, x), atol=1e-12)
    np.testing.assert_allclose(operator.rmatvec(x), np.einsum("ji,jab->iab", dense, x), atol=1e-12)
    assert ToeplitzOperator([2.0]).matvec([3.0]).tolist() == [6.0]


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0), (2, 2, 2)])
def test_factors_are_matrices_that_are_not_empty(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadValue):
        diagonal_means(np.ones(shape), np.ones(shape))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_factors_and_lags_are_finite(wrong: float) -> None:
    good, bad = np.ones((3, 2)), np.full((3, 2), wrong)
    for q, k in ((good, bad), (bad, good)):
        with pytest.raises(BadValue):
            diagonal_means(q, k)
    for lags in ([1.0, wrong, 1.0], np.ones((3, 3)), [1.0, 2.0], []):
        with pytest.raises(BadValue):
            toeplitz_matrix(lags)
    with pytest.raises(BadValue):
        toeplitz_projection(np.ones(4))


def test_matrices_are_built_up_to_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Built(Exception):
        pass

    def build(lags: np.ndarray) -> np.ndarray:
        raise Built

    with monkeypatch.context() as patch:
        patch.setattr(toeplitz, "toeplitz_matrix", build)
        with pytest.raises(Built):
            dense_singular_values(np.ones(2 * 2048 - 1))
        with pytest.raises(BadValue):
            dense_singular_values(np.ones(2 * 2049 - 1))
    monkeypatch.setattr(toeplitz, "DENSE_LIMIT", 2)
    assert toeplitz_matrix(np.ones(2 * 16 - 1)).shape == (16, 16)
    with pytest.raises(BadValue):
        toeplitz_matrix(np.ones(2 * 17 - 1))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_optimal_circulant_is_the_diagonal_in_fouriers_basis(n: int) -> None:
    lags = np.random.default_rng(n).standard_normal(2 * n - 1)
    fourier = np.exp(2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) / np.sqrt(n)
    expected = np.diagonal(fourier.conj().T @ toeplitz_matrix(lags) @ fourier)
    np.testing.assert_allclose(optimal_circulant(lags), expected, atol=1e-12)
    below, above = norm_bounds(lags)
    assert below == pytest.approx(np.abs(expected).max())
    size = fast_length(2 * n - 1)
    circulant = np.zeros(size)
    for t in range(1 - n, n):
        circulant[t % size] += lags[t + n - 1]
    assert above == pytest.approx(max(np.abs(np.fft.fft(circulant)).max(), below))


def test_products_are_counted_and_the_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    lags = np.random.default_rng(0).standard_normal(2 * 100 - 1)
    made: list[int] = []
    plain = ToeplitzOperator.matvec

    def counting(self: ToeplitzOperator, x: np.ndarray) -> np.ndarray:
        made.append(1)
        return plain(self, x)

    monkeypatch.setattr(ToeplitzOperator, "matvec", counting)
    found = top_singular_value(lags)
    assert found.products == len(made) > 30
    assert found.converged
    assert found.residual <= 1e-8
    assert found == top_singular_value(lags, tolerance=1e-8, restarts=12, seed=0)
    assert found != top_singular_value(lags, seed=1)
    assert top_singular_value(np.arange(5.0)).products > 0  # three positions are searched
    assert top_singular_value(np.arange(3.0)).products == 0


@pytest.mark.parametrize("n", [5, 60, 150])
def test_the_plain_search_is_the_best_of_sixty_krylov_vectors(n: int) -> None:
    draw = np.random.default_rng(n)
    half = draw.standard_normal((n, n))
    matrix, start = half + half.T, draw.standard_normal(n)
    basis = np.zeros((n, 0))
    vector = start
    for _ in range(min(n, 60)):
        basis = np.linalg.qr(np.column_stack([basis, vector]))[0]
        vector = matrix @ basis[:, -1]
    values = np.linalg.eigvalsh(basis.T @ matrix @ basis)
    found = _power_vector(lambda x: matrix @ x, start)
    assert np.linalg.norm(found) == pytest.approx(1)
    assert found @ matrix @ found == pytest.approx(values[np.abs(values).argmax()], rel=1e-11)


def test_the_plain_search_ends_where_the_space_does() -> None:
    """Rank two: three products hold all of it, and what is left is rounding."""
    products: list[int] = []
    columns = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 2)))[0]
    matrix = columns @ np.diag([3.0, -5.0]) @ columns.T

    def product(x: np.ndarray) -> np.ndarray:
        products.append(1)
        return matrix @ x

    found = _power_vector(product, np.random.default_rng(2).standard_normal(40))
    assert found @ matrix @ found == pytest.approx(-5.0, rel=1e-12)
    diagonal = _power_vector(lambda x: np.array([1.0, 2.0]) * x, np.array([0.0, 7.0]))
    np.testing.assert_array_equal(diagonal, [0.0, 1.0])
    assert len(products) <= 6


def test_the_symbol_is_read_on_eight_points_per_lag() -> None:
    lags = np.array([0.5, -1.0, 2.0, -1.0, 0.5])
    for finer, points in ((8, 40), (3, 15), (1, 15), (20, 100)):
        values = symbol(lags, points).real
        found = symbol_range(lags, oversampling=finer)
        assert (found.least, found.largest) == (values.min(), values.max())
        middle, spread = (found.least + found.largest) / 2, (found.largest - found.least) / 2
        widened = spread / np.cos(np.pi * 2 / points)
        assert found.least_bound == pytest.approx(middle - widened)
        assert found.largest_bound == pytest.approx(middle + widened)
    assert symbol_range(lags) == symbol_range(lags, oversampling=8)
    assert symbol_range(lags).largest == pytest.approx(5.0)  # at pi, an angle of the grid
    assert symbol(lags, 1) == pytest.approx(lags.sum())
    for points in (0, -1):
        with pytest.raises(BadValue):
            symbol(lags, points)


def test_lags_are_symmetric_up_to_rounding() -> None:
    for off, fine in ((0.9e-12, True), (1.1e-12, False)):
        lags = [1.0, 2.0, 1.0 + off]
        if fine:
            assert symbol_range(lags).largest == pytest.approx(4.0)
        else:
            with pytest.raises(BadValue):
                symbol_range(lags)


def test_a_causal_projection_is_zero_above_the_diagonal() -> None:
    matrix = np.arange(9.0).reshape(3, 3)
    assert toeplitz_projection(matrix).tolist() == [[4, 3, 2], [5, 4, 3], [6, 5, 4]]
    assert toeplitz_projection(matrix, causal=True).tolist() == [[4, 0, 0], [5, 4, 0], [6, 5, 4]]
