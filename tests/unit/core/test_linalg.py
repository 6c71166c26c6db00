"""The triangle of a tall matrix, against NumPy's QR and against eigenvalues in higher precision."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from toposcope.core import linalg as thin
from toposcope.core.linalg import thin_r


def tall(rows: int, width: int, condition: float, seed: int = 0) -> np.ndarray:
    """A matrix with singular values from 1 down to 1 / condition."""
    draw = np.random.default_rng(seed).standard_normal
    left, right = np.linalg.qr(draw((rows, width)))[0], np.linalg.qr(draw((width, width)))[0]
    return np.asarray(left * np.geomspace(1, 1 / condition, width) @ right)


@pytest.mark.parametrize(("rows", "width"), [(40, 8), (3000, 8), (9, 8), (5, 8), (1100, 64), (1, 1)])
@pytest.mark.parametrize("condition", [1.0, 10.0, 1e9])
def test_triangle_has_the_gram_matrix_and_the_singular_values(rows: int, width: int, condition: float) -> None:
    matrix = tall(max(rows, width), width, condition)[:rows]
    found = thin_r(matrix)
    assert found.shape == (min(rows, width), width)
    assert np.array_equal(found, np.triu(found))
    np.testing.assert_allclose(found.T @ found, matrix.T @ matrix, atol=1e-14)
    exact = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(np.linalg.svd(found, compute_uv=False), exact, rtol=1e-5, atol=1e-14 * exact[0])


def test_small_values_keep_their_digits_where_cholesky_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of very different lengths do not matter; the least singular value is right relative to itself."""
    matrix = tall(60, 6, 20.0) * np.geomspace(1, 1e-6, 6)
    monkeypatch.setattr(thin, "_householder", None)  # must not be needed
    found = thin_r(matrix, 500.0)
    with mpmath.workdps(40):
        exact = mpmath.svd_r(mpmath.matrix(matrix.tolist()), compute_uv=False)
        ours = mpmath.svd_r(mpmath.matrix(found.tolist()), compute_uv=False)
        error = max(abs(a - b) / b for a, b in zip(ours, exact, strict=True))
    assert error < 1e-12


def test_ill_conditioned_and_dependent_columns_are_left_to_householder(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    householder = thin._householder
    monkeypatch.setattr(thin, "_householder", lambda block: taken.append(block.shape) or householder(block))
    thin_r(tall(200, 6, 1e6))
    twins = np.random.default_rng(1).standard_normal((200, 3))
    thin_r(np.hstack([twins, twins]))
    thin_r(np.zeros((200, 3)))
    assert len(taken) == 3
    thin_r(tall(200, 6, 5.0))
    assert len(taken) == 3


def test_wide_well_conditioned_matrices_are_taken_by_cholesky(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their condition in the 1-norm is beyond the limit though that in the 2-norm is 6; one bad column ends it."""
    random = np.random.default_rng(0)
    tall = random.standard_normal((2048, 1024))
    unit = np.linalg.cholesky(tall.T @ tall).T
    unit /= np.linalg.norm(unit, axis=0)
    assert thin._condition(unit) == pytest.approx(np.linalg.cond(unit), rel=0.1)
    limit = 400.0
    assert np.linalg.cond(unit, 1) > limit > 6 * np.sqrt(1024)
    assert thin.cholesky_r(tall.T @ tall, limit) is not None
    monkeypatch.setattr(thin, "WIDE", 10**9)
    assert thin.cholesky_r(tall.T @ tall, limit) is None
    monkeypatch.undo()
    tall[:, 1] = tall[:, 0] + 1e-3 * tall[:, 1]
    assert thin.cholesky_r(tall.T @ tall, limit) is None
