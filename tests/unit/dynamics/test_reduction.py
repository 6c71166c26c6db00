"""T9: the reduction to a head's own coordinates keeps spectrum and flow, also where rank is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.dynamics.reduction import (
    _off_mean,
    _surely_full,
    factor_size,
    numerical_rank,
    one_eigenvalue,
    reduce_head,
    reduce_system,
    reduce_values,
    spectral_norm,
    thin_factors,
)

from .systems import make_head, random_head, velocity, with_spectrum

seeds = st.integers(0, 2**32 - 1)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    return values[np.argsort(-np.abs(values))][:count]


def as_one_set(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The greatest distance from an eigenvalue of one set to the nearest of the other, both ways."""
    gaps = np.abs(ours[:, None] - theirs)
    return float(max(gaps.min(axis=0).max(), gaps.min(axis=1).max()))


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 12), st.integers(1, 12))
def test_the_spectrum_is_that_of_the_whole(seed: int, d: int, r: int) -> None:
    head = random_head(np.random.default_rng(seed), d, min(r, d))
    system = reduce_head(head)
    assert system.frozen == (min(r, d) < d)
    assert not system.compressed
    whole = largest(np.linalg.eigvals(head.o @ head.v), system.rank)
    assert as_one_set(np.linalg.eigvals(system.v), whole) <= 1e-6 * np.abs(whole).max()
    assert system.v_norm == pytest.approx(np.linalg.norm(head.v, 2))
    assert system.o_norm == pytest.approx(np.linalg.norm(head.o, 2))


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(2, 10), st.integers(1, 9), st.integers(0, 8))
def test_only_zeros_of_structure_are_left_out(seed: int, d: int, r: int, rank: int) -> None:
    """Zero rows of V go, with the non-zero spectrum unchanged; rank that is merely missing stays where it is."""
    random = np.random.default_rng(seed)
    r = min(r, d)
    rank = min(rank, r)
    head = random_head(random, d, r)
    head.v[random.permutation(r)[rank:]] = 0.0
    system = reduce_head(head)
    assert (system.rank, system.compressed, system.frozen) == (rank, rank < r, rank < d)
    if rank:
        whole = largest(np.linalg.eigvals(head.o @ head.v), rank)
        assert as_one_set(np.linalg.eigvals(system.v), whole) <= 1e-5 * np.abs(whole).max()
    product = random.standard_normal((r, rank)) @ random.standard_normal((rank, d))
    low = make_head(head.q, head.k, product, head.o)
    assert reduce_head(low).rank == (r if rank else 0)
    assert numerical_rank(low.v, low.o) == rank == len(thin_factors(low.v, low.o)[0])


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_the_flow_is_the_same_in_both_coordinates(seed: int, r: int, more: int, causal: bool) -> None:
    """For x = O z (nothing frozen) O times the small velocity is the large one; then nu never moves."""
    random = np.random.default_rng(seed)
    head = random_head(random, r + more, r)
    system = reduce_head(head)
    z = random.standard_normal((4, r))
    small = velocity(z, system.w, system.v, causal=causal)
    whole_w, whole_v = head.scale * head.q.T @ head.k, head.o @ head.v
    large = velocity(z @ head.o.T, whole_w, whole_v, causal=causal)
    np.testing.assert_allclose(small @ head.o.T, large, rtol=1e-8, atol=1e-8 * np.abs(large).max())
    frozen = np.eye(r + more) - head.o @ np.linalg.solve(system.v, head.v)  # x -> nu
    anywhere = velocity(random.standard_normal((4, r + more)), whole_w, whole_v, causal=causal)
    size = np.abs(anywhere).max() * np.linalg.cond(system.v)
    np.testing.assert_allclose(anywhere @ frozen.T, 0, atol=1e-10 * size)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(1, 4))
def test_compressed_coordinates_carry_the_flow_too(seed: int, rank: int, lost: int) -> None:
    random = np.random.default_rng(seed)
    r, d = rank + lost, rank + lost + 2
    head = random_head(random, d, r)
    head.o[:, random.permutation(r)[rank:]] = 0.0
    system = reduce_head(head)
    z = random.standard_normal((4, rank))
    large = velocity(z @ system.o.T, head.scale * head.q.T @ head.k, head.o @ head.v)
    small = velocity(z, system.w, system.v)
    np.testing.assert_allclose(small @ system.o.T, large, rtol=1e-8, atol=1e-8 * np.abs(large).max())


@pytest.mark.parametrize("r", [2, 5, 7])
def test_a_centred_head_loses_the_direction_of_the_mean(r: int) -> None:
    """Q, K and V behind a LayerNorm do not see a token's mean: with r >= d one eigenvalue is zero by structure."""
    random = np.random.default_rng(r)
    d = 5
    plain = random_head(random, d, r)
    off = np.eye(d) - np.ones((d, d)) / d
    head = make_head(plain.q @ off, plain.k @ off, plain.v @ off, plain.o)
    system = reduce_head(head, centred=True)
    assert system.rank == min(r, d - 1)
    whole = np.linalg.eigvals(head.o @ head.v)
    assert as_one_set(np.linalg.eigvals(system.v), largest(whole, system.rank)) <= 1e-8 * np.abs(whole).max()
    seen = np.linalg.eigvalsh(system.w + system.w.T)
    basis = system.o if r < d else np.linalg.svd(np.ones((1, d)))[2][1:].T
    w = head.scale * (head.q @ basis).T @ (head.k @ basis)
    np.testing.assert_allclose(seen, np.linalg.eigvalsh(w + w.T), atol=1e-9 * np.abs(seen).max())


@pytest.mark.parametrize(("d", "r"), [(3, 5), (2, 8), (1, 4)])
def test_a_head_wider_than_the_model_freezes_nothing(d: int, r: int) -> None:
    random = np.random.default_rng(d)
    head = random_head(random, d, r)
    system = reduce_head(head)
    assert (system.rank, system.frozen, system.compressed) == (d, False, False)
    assert as_one_set(np.linalg.eigvals(system.v), np.linalg.eigvals(head.o @ head.v)) <= 1e-8 * system.v_norm


def test_a_zero_row_in_o_and_a_full_system() -> None:
    random = np.random.default_rng(5)
    head = random_head(random, 8, 3)
    head.o[2] = 0.0
    system = reduce_head(head)
    assert (system.rank, system.compressed) == (3, False)
    v, w = with_spectrum(random, 4, -1, 1), random.standard_normal((4, 4))
    whole = reduce_system(w, v)
    np.testing.assert_array_equal(whole.v, v)
    np.testing.assert_allclose(whole.w, w)
    assert not whole.frozen
    assert not reduce_values(head.v, head.o).w.any()


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(0, 9), st.integers(0, 9))
def test_spectral_norm(seed: int, rows: int, columns: int) -> None:
    matrix = np.random.default_rng(seed).standard_normal((rows, columns))
    expected = np.linalg.norm(matrix, 2) if matrix.size else 0.0
    assert spectral_norm(matrix) == pytest.approx(expected, rel=1e-10)


def test_spectral_norm_of_matrices_near_the_identity() -> None:
    """LAPACK's search for a single eigenvalue fails on some of these (10 of 3000); the norm must not."""
    for seed in range(1500):
        random = np.random.default_rng(seed)
        tall = random.standard_normal((2 * (3 + seed % 6), 3 + seed % 6))
        assert spectral_norm(np.linalg.pinv(tall) @ tall) == pytest.approx(1.0)


EPS = float(np.finfo(np.float64).eps)


@pytest.mark.parametrize(("d", "r", "rank"), [(6, 3, 2), (6, 4, 1), (3, 5, 2), (4, 4, 3), (3, 5, 3), (5, 3, 0)])
def test_thin_factors_have_the_same_product(d: int, r: int, rank: int) -> None:
    random = np.random.default_rng(d * r)
    v = random.standard_normal((r, rank)) @ random.standard_normal((rank, d))
    o = 3.0 * random.standard_normal((d, r))
    thin_v, thin_o = thin_factors(v, o)
    assert (thin_v.shape, thin_o.shape) == ((rank, d), (d, rank))
    np.testing.assert_allclose(thin_o @ thin_v, o @ v, atol=1e-12 * np.linalg.norm(o) * np.linalg.norm(v))
    full = random.standard_normal((min(r, d), d))
    kept = thin_factors(full, o[:, : len(full)])
    np.testing.assert_array_equal(kept[0], full)
    np.testing.assert_array_equal(kept[1], o[:, : len(full)])


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("d", [2, 7])
def test_rank_ends_where_rounding_begins(d: int, scale: float) -> None:
    """diag(1, c) scale^2 from factors of norms scale and sqrt(2) scale: known to 8 d eps of their product."""
    allowance = 8 * d * EPS * np.sqrt(2)
    for share, rank in ((0.9, 1), (1.1, 2)):
        v = scale * np.diag([1.0, share * allowance]) @ np.eye(2, d)
        assert numerical_rank(v, scale * np.eye(d, 2)) == rank


def test_sizes_and_rounding_are_those_of_the_factors() -> None:
    random = np.random.default_rng(0)
    for d, r in ((7, 3), (3, 7), (4, 4)):
        head = random_head(random, d, r)
        norms = np.linalg.norm(head.v), np.linalg.norm(head.o)
        expected = 8 * max(d, r) * EPS * norms[0] * norms[1]
        for found in (reduce_head(head), reduce_values(head.v, head.o)):
            assert found.rounding == pytest.approx(expected, rel=1e-12)
            assert found.v_norm == pytest.approx(np.linalg.norm(head.v, 2))
            assert found.o_norm == pytest.approx(np.linalg.norm(head.o, 2))
        given_size = reduce_values(head.v, head.o, o_size=(2.0, 5.0))
        assert given_size.o_norm == 2.0
        assert given_size.rounding == pytest.approx(8 * max(d, r) * EPS * norms[0] * 5.0, rel=1e-12)
        assert factor_size(head.o) == pytest.approx((np.linalg.norm(head.o, 2), norms[1]))
    w, v = random.standard_normal((2, 4, 4))
    whole = reduce_system(w, v)
    assert whole.rounding == pytest.approx(8 * 4 * EPS * np.linalg.norm(v), rel=1e-12)
    assert (whole.v_norm, whole.o_norm) == (pytest.approx(np.linalg.norm(v, 2)), 1.0)


def test_a_zero_row_of_a_full_system_leaves_the_rest_of_both_matrices() -> None:
    w, v = np.random.default_rng(1).standard_normal((2, 4, 4))
    v[2] = 0.0
    found = reduce_system(w, v)
    kept = [0, 1, 3]
    assert (found.rank, found.frozen, found.compressed) == (3, True, True)
    np.testing.assert_allclose(found.v, v[np.ix_(kept, kept)])
    np.testing.assert_allclose(found.w, w[np.ix_(kept, kept)])
    np.testing.assert_array_equal(found.o, np.eye(4)[:, kept])


@pytest.mark.parametrize(("d", "r"), [(5, 3), (5, 5), (3, 5)])
def test_the_smaller_product_is_formed(d: int, r: int) -> None:
    """V O where the head is narrower than the model, O V itself where it is wider; a layer's also at equal width."""
    head = random_head(np.random.default_rng(r), d, r)
    found, values = reduce_head(head), reduce_values(head.v, head.o)
    if r > d:
        np.testing.assert_allclose(found.v, head.o @ head.v)
        np.testing.assert_array_equal(found.o, np.eye(d))
        np.testing.assert_allclose(found.w, head.scale * head.q.T @ head.k)
    else:
        np.testing.assert_allclose(found.v, head.v @ head.o)
        np.testing.assert_array_equal(found.o, head.o)
    np.testing.assert_allclose(values.v, head.o @ head.v if r >= d else head.v @ head.o)
    np.testing.assert_array_equal(values.w, np.zeros((min(d, r), min(d, r))))
    assert (found.frozen, values.frozen) == (r < d, r < d)


@pytest.mark.parametrize("r", [2, 5, 6])
def test_a_centred_layer_loses_the_mean_where_it_is_wide(r: int) -> None:
    random = np.random.default_rng(r)
    d = 5
    off = np.eye(d) - np.ones((d, d)) / d
    v, o = random.standard_normal((r, d)) @ off, random.standard_normal((d, r))
    found = reduce_values(v, o, centred=True)
    assert found.rank == min(r, d - 1)
    whole = np.linalg.eigvals(o @ v)
    assert as_one_set(np.linalg.eigvals(found.v), largest(whole, found.rank)) <= 1e-8 * np.abs(whole).max()
    assert reduce_values(v, o).rank == min(r, d)
    assert reduce_head(make_head(v, v, v, o), centred=True).rank == min(r, d - 1)


@pytest.mark.parametrize("d", [1, 2, 7])
def test_the_directions_that_a_mean_does_not_see(d: int) -> None:
    basis = _off_mean(np.eye(d))
    assert basis.shape == (d, d - 1)
    np.testing.assert_allclose(basis.T @ basis, np.eye(d - 1), atol=1e-14)
    np.testing.assert_allclose(np.ones(d) @ basis, 0.0, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_full_rank_is_sure_up_to_a_condition_of_a_hundred_thousand(scale: float) -> None:
    assert _surely_full(scale * np.diag([1.0, 0.3, 1.1e-10]))
    assert not _surely_full(scale * np.diag([1.0, 0.3, 0.9e-10]))
    assert not _surely_full(np.zeros((2, 2)))


def test_one_eigenvalue_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where LAPACK's search for a single one fails."""
    drawn = np.random.default_rng(2).standard_normal((5, 5))
    symmetric = drawn + drawn.T
    values = np.linalg.eigvalsh(symmetric)
    assert [one_eigenvalue(symmetric, i) for i in range(5)] == pytest.approx(values)
    search = scipy.linalg.eigvalsh

    def failing(matrix: np.ndarray, **options: Any) -> Any:
        if options:
            raise scipy.linalg.LinAlgError("no convergence")
        return search(matrix)

    monkeypatch.setattr(scipy.linalg, "eigvalsh", failing)
    assert [one_eigenvalue(symmetric, i) for i in range(5)] == pytest.approx(values)
