"""Singular values from factors against dense float64 linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.spectra.singular import (
    effective_rank,
    majorisation_gap,
    numerical_rank,
    product_frobenius,
    product_singular_values,
    stable_rank,
)

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.floats(-4, 4))
def test_the_factors_give_what_dense_gives(seed: int, n: int, m: int, h: int, size: float) -> None:
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((n, h)) * 10**size, random.standard_normal((m, h))
    dense = scipy.linalg.svdvals(q @ k.T)
    ours = product_singular_values(q, k)
    assert len(ours) == min(n, m, h)
    assert (np.diff(ours) <= 0).all()
    np.testing.assert_allclose(np.pad(ours, (0, len(dense) - len(ours))), dense, atol=1e-12 * dense[0])
    assert product_frobenius(q, k) == pytest.approx(np.linalg.norm(q @ k.T), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(seeds, st.floats(0, 9), st.floats(0, 9), st.booleans())
def test_badly_conditioned_factors_lose_no_digits(seed: int, left: float, right: float, deficient: bool) -> None:
    """Columns from 1 down to 10^-9, or equal to each other: on either side of the border between the two routes."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((6, 6))
    q = random.standard_normal((60, 6)) * np.geomspace(1, 10**-left, 6) @ mixed
    k = random.standard_normal((50, 6)) * np.geomspace(1, 10**-right, 6)
    if deficient:
        q[:, 3] = q[:, 1]
    dense = scipy.linalg.svdvals(q @ k.T)
    np.testing.assert_allclose(product_singular_values(q, k), dense[:6], atol=1e-12 * dense[0])


def test_tall_factors_are_reduced_block_by_block() -> None:
    """3000 rows pass through the tree of small QRs, with rows left over; small singular values survive."""
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((n, 8)) * 10.0 ** -np.arange(8) for n in (3001, 2500))
    small = scipy.linalg.qr(q, mode="r")[0][:8] @ scipy.linalg.qr(k, mode="r")[0][:8].T
    dense = scipy.linalg.svdvals(small)
    np.testing.assert_allclose(product_singular_values(q, k), dense, atol=1e-14 * dense[0])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.floats(1e-150, 1e150), st.integers(0, 5))
def test_ranks_lie_between_one_and_the_rank_and_ignore_scale(values: list[float], scale: float, zeros: int) -> None:
    whole = np.array(values + [0.0] * zeros)
    for measure in (effective_rank, stable_rank):
        rank = measure(whole)
        assert rank is not None
        assert 1 <= rank <= len(values) * (1 + 1e-12)
        assert measure(whole * scale) == pytest.approx(rank, rel=1e-9)


def test_equal_values_have_full_effective_rank_and_zero_has_none() -> None:
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert stable_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank([3.0, 0.0]) == 1
    assert effective_rank(np.zeros(3)) is stable_rank(np.zeros(3)) is majorisation_gap([1.0], [0.0]) is None
    assert numerical_rank([1.0, 1e-3, 1e-17], 4) == 2
    assert numerical_rank(np.zeros(3), 3) == 0


def test_the_majorisation_gap_finds_the_worst_partial_sum() -> None:
    assert majorisation_gap([3.0, 1.0], [2.0, 2.0]) == pytest.approx(1 / 4)
    assert majorisation_gap([1.0, 2.0], [4.0]) == pytest.approx(-1 / 4)  # sorted first, filled with zeros
    assert majorisation_gap([2.0, 2.0], [3.0, 1.0]) == pytest.approx(0)


def test_bad_factors_are_refused() -> None:
    with pytest.raises(BadValue, match="NaN") as refused:
        product_singular_values([[1.0, np.nan], [0, 0]], np.ones((2, 2)))
    assert all(number in str(refused.value) for number in ("1", "4"))
    with pytest.raises(BadValue, match="float64"):
        product_singular_values(np.full((2, 2), 1e200), np.ones((2, 2)))
    with pytest.raises(BadValue, match="width 2"):
        product_singular_values(np.ones((2, 2)), np.ones((2, 3)))
    with pytest.raises(BadValue, match="axes"):
        product_frobenius(np.ones((0, 2)), np.ones((2, 2)))
