"""The low-rank algebra against dense float64 linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.dynamics.factored import Factored, _gram_route, sym_eigs

seeds = st.integers(0, 2**32 - 1)


def factors(seed: int, d: int, r: int, stretch: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Two factors whose columns differ in size by up to 10^stretch."""
    random = np.random.default_rng(seed)
    sizes = 10.0 ** random.uniform(-stretch, 0, r)
    return random.standard_normal((d, r)) * sizes, random.standard_normal((r, d)) * sizes[:, None]


def dense_eigenvalues(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    full = left @ right
    return scipy.linalg.eigvalsh((full + full.T) / 2)


@settings(max_examples=300, deadline=None)
@given(seeds, st.integers(1, 24), st.integers(1, 26), st.floats(0, 3))
def test_the_qr_route_equals_dense(seed: int, d: int, r: int, stretch: float) -> None:
    """Every eigenvalue, relative to the largest; what is not returned is zero; r = 1, r = d, 2r >= d, r > d."""
    left, right = factors(seed, d, r, stretch)
    ours, theirs = sym_eigs(left, right), dense_eigenvalues(left, right)
    assert len(ours) == min(d, 2 * r)
    assert (np.diff(ours) >= 0).all()
    padded = np.sort(np.concatenate([ours, np.zeros(d - len(ours))]))
    np.testing.assert_allclose(padded, theirs, atol=1e-12 * np.abs(theirs).max())


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(5, 30), st.integers(1, 6))
def test_the_gram_route_is_right_where_it_says(seed: int, d: int, r: int) -> None:
    left, right = factors(seed, d, r)
    ours, theirs = sym_eigs(left, right, "gram"), sym_eigs(left, right)
    assert len(ours) == len(theirs) == min(d, 2 * r)
    # well-conditioned factors: all of them; the bound is the one the docstring states for the top
    np.testing.assert_allclose(ours, theirs, atol=1e-8 * np.abs(theirs).max())
    np.testing.assert_allclose(ours[[0, -1]], theirs[[0, -1]], rtol=1e-10, atol=1e-10 * np.abs(theirs).max())


def test_the_gram_route_gives_way_where_it_cannot_be_formed() -> None:
    """K = Q: B = [Q^T, Q^T] has half the rank its shape promises, so its Gram matrix has no Cholesky factor."""
    left, _ = factors(0, 20, 3)
    ours = sym_eigs(left, left.T, "gram")
    np.testing.assert_allclose(ours[:3], 0, atol=1e-7)
    np.testing.assert_allclose(ours[3:], np.linalg.svd(left, compute_uv=False)[::-1] ** 2, rtol=1e-7)


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 8), st.integers(0, 8))
def test_inertia(seed: int, r: int, more: int) -> None:
    """[L, R^T] of rank 2r: exactly r positive, r negative and d - 2r zero eigenvalues; never definite."""
    d = 2 * r + more
    values = dense_eigenvalues(*factors(seed, d, r))
    doubt = 1e-9 * np.abs(values).max()
    assert ((values > doubt).sum(), (values < -doubt).sum()) == (r, r)
    ours = sym_eigs(*factors(seed, d, r))
    assert ((ours > 0).sum(), (ours < 0).sum()) == (r, r)


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 20), st.integers(1, 22), st.floats(0, 2))
def test_norms_and_core(seed: int, d: int, r: int, stretch: float) -> None:
    ours = Factored(*factors(seed, d, r, stretch))
    full = ours.left @ ours.right
    assert ours.norm() == pytest.approx(np.linalg.norm(full, 2), rel=1e-12)
    assert ours.frobenius() == pytest.approx(np.linalg.norm(full), rel=1e-10)
    np.testing.assert_array_equal(ours.sym_eigenvalues(), sym_eigs(ours.left, ours.right))
    assert np.trace(ours.core()) == pytest.approx(np.trace(full), abs=1e-11 * np.linalg.norm(full))
    assert ours.core().shape == (r, r)


@pytest.mark.parametrize(("d", "r"), [(5, 1), (9, 3), (20, 4)])
def test_the_gram_route_is_taken_where_it_can_be(d: int, r: int) -> None:
    left, right = factors(1, d, r)
    found = _gram_route(left, right)
    assert found is not None
    assert found.shape == (2 * r,)
    padded = np.sort(np.concatenate([found, np.zeros(d - 2 * r)]))
    np.testing.assert_allclose(padded, dense_eigenvalues(left, right), atol=1e-8 * np.abs(padded).max())
    np.testing.assert_array_equal(sym_eigs(left, right, "gram"), found)
    assert _gram_route(left, np.zeros((r, d))) is None


def test_a_matrix_that_is_zero() -> None:
    """Sums of squares that rounding may leave below zero are none."""
    nothing = Factored(np.zeros((5, 2)), np.ones((2, 5)))
    assert (nothing.norm(), nothing.frobenius()) == (0.0, 0.0)
    np.testing.assert_array_equal(nothing.sym_eigenvalues(), np.zeros(4))
    left = np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    right = np.array([[1.0, 0.3, 0.1], [-1.0, -0.3, -0.1]])
    assert Factored(left, right).frobenius() == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize("stretch", [4.0, 6.0])
def test_columns_of_very_different_sizes_keep_their_digits(stretch: float) -> None:
    """Eigenvalues far below the largest, relative to themselves: what the QR route is for."""
    q = np.linalg.qr(np.random.default_rng(2).standard_normal((12, 6)))[0]
    sizes = np.array([1.0, 10.0**-stretch, 10.0 ** (-2 * stretch)])
    found = sym_eigs(q[:, :3] * sizes, q[:, 3:].T)  # sym(x y^T) of orthonormal x, y: plus and minus a half
    np.testing.assert_allclose(np.sort(np.abs(found))[::-1], np.repeat(sizes / 2, 2), rtol=1e-3)
    np.testing.assert_allclose(found, -found[::-1], rtol=1e-3)
