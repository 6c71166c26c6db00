"""Theorems S1 to S7 as properties of random draws, and every counterexample of the notes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.encodings import alibi, rope
from toposcope.spectra.contraction import contraction
from toposcope.spectra.head_kernel import kernel
from toposcope.spectra.singular import effective_rank, majorisation_gap

draws = settings(max_examples=200, deadline=None)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 14)


def hermitian(random: np.random.Generator, n: int) -> np.ndarray:
    full = random.standard_normal((n, n)) + 1j * random.standard_normal((n, n))
    return full + full.conj().T


def correlation(random: np.random.Generator, n: int) -> np.ndarray:
    """A Hermitian positive semidefinite matrix with unit diagonal, of any rank; Toeplitz every other time."""
    if random.integers(2):
        weights = random.uniform(0, 1, random.integers(1, 6))
        phases = np.exp(1j * np.outer(np.arange(n), random.uniform(-np.pi, np.pi, len(weights))))
        return (phases * weights / weights.sum()) @ phases.conj().T
    rank = int(random.integers(1, n + 1))
    rows = random.standard_normal((n, rank)) + 1j * random.standard_normal((n, rank))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.conj().T


def eigenvalues(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh(matrix)[::-1]


def partial_sums_exceed(ours: np.ndarray, theirs: np.ndarray) -> float:
    """How far the partial sums of the largest exceed the other's."""
    return float(np.max(np.cumsum(np.sort(ours)[::-1]) - np.cumsum(np.sort(theirs)[::-1])))


def svd(matrix: np.ndarray) -> np.ndarray:
    return scipy.linalg.svdvals(matrix)


@draws
@given(seeds, sizes)
def test_S1_containment_and_S2_majorisation(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    A, G = hermitian(random, n), correlation(random, n)
    before, after = eigenvalues(A), eigenvalues(A * G)
    slack = 1e-9 * np.abs(before).max()
    assert before[-1] - slack <= after[-1] <= after[0] <= before[0] + slack
    assert partial_sums_exceed(after, before) <= slack
    assert after.sum() == pytest.approx(before.sum(), abs=slack * n)


@draws
@given(seeds, sizes)
def test_S2_corollaries_for_positive_content(seed: int, n: int) -> None:
    """Effective rank does not fall, condition does not grow, the determinant does not fall."""
    random = np.random.default_rng(seed)
    root = hermitian(random, n)
    A, G = root @ root.conj().T + 0.1 * np.eye(n), correlation(random, n)
    before, after = eigenvalues(A), eigenvalues(A * G)
    rank_before, rank_after = effective_rank(before), effective_rank(after)
    assert rank_before is not None
    assert rank_after is not None
    assert rank_after >= rank_before * (1 - 1e-9)
    assert after[0] / after[-1] <= before[0] / before[-1] * (1 + 1e-9)
    assert np.log(after).sum() >= np.log(before).sum() - 1e-9 * n


@draws
@given(seeds, sizes, st.booleans())
def test_S3_singular_values_of_any_content_masked_or_not(seed: int, n: int, masked: bool) -> None:
    random = np.random.default_rng(seed)
    M, G = random.standard_normal((n, n)) + 1j * random.standard_normal((n, n)), correlation(random, n)
    M = np.tril(M) if masked else M
    gap = majorisation_gap(svd(M * G), svd(M))
    assert gap is not None
    assert gap <= 1e-9


@draws
@given(seeds, sizes, st.integers(1, 6))
def test_S3_schur_multipliers_of_norm_one(seed: int, n: int, width: int) -> None:
    """G_ij = <x_i, y_j> with both in the unit ball, not even Hermitian."""
    random = np.random.default_rng(seed)
    x, y = random.standard_normal((n, width)), random.standard_normal((n, width))
    x, y = (rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True)) for rows in (x, y))
    M = random.standard_normal((n, n))
    gap = majorisation_gap(svd(M * (x @ y.T)), svd(M))
    assert gap is not None
    assert gap <= 1e-9


def test_S3_leaves_the_effective_rank_of_unsymmetric_content_free() -> None:
    """It falls in some draws: the notes say so, and a tool must not assert otherwise."""
    random = np.random.default_rng(0)
    falls = 0
    for _ in range(200):
        M, G = random.standard_normal((6, 6)), correlation(random, 6)
        before, after = effective_rank(svd(M)), effective_rank(svd(M * G))
        assert before is not None
        assert after is not None
        falls += after < before
    assert falls > 10


@draws
@given(seeds, sizes)
def test_S4_additive_coupling(seed: int, n: int) -> None:
    """Weyl, Lidskii, Ky Fan; and a positive semidefinite summand moves every eigenvalue up."""
    random = np.random.default_rng(seed)
    A, P = hermitian(random, n), hermitian(random, n)
    a, p, both = eigenvalues(A), eigenvalues(P), eigenvalues(A + P)
    slack = 1e-9 * (np.abs(a).max() + np.abs(p).max())
    assert (a + p[-1] <= both + slack).all()
    assert (both <= a + p[0] + slack).all()
    assert partial_sums_exceed(both, a + p) <= slack
    assert partial_sums_exceed(a + p[::-1], both) <= slack
    up = eigenvalues(A + P @ P)
    square = eigenvalues(P @ P)
    slack = 1e-9 * (np.abs(a).max() + square[0])
    assert (up >= a - slack).all()
    assert up[0] >= max(a[0] + square[-1], square[0] + a[-1]) - slack


def test_S4_additive_need_not_widen() -> None:
    content, position = np.diag([10.0, 1.0]), np.diag([0.0, 5.0])
    before, after = eigenvalues(content), eigenvalues(content + position)
    assert np.ptp(before) == pytest.approx(9)
    assert np.ptp(after) == pytest.approx(4)
    assert after[0] / after[-1] == pytest.approx(10 / 6)


@pytest.mark.parametrize("n", [32, 128, 512])
def test_S4_alibi_has_one_negative_eigenvalue(n: int) -> None:
    bias = alibi(8).bias
    assert bias is not None
    at = np.arange(n)
    for head in (0, 7):
        table = bias.table(at, at)[head]
        values = np.linalg.eigvalsh(table)
        slope = -table[1, 0]
        assert (values[1:] > 0).all()
        assert values[0] == pytest.approx(-0.3474 * slope * n**2, rel=2e-3)


@draws
@given(seeds, sizes, st.floats(0, 3))
def test_S5a_one_frequency_changes_no_singular_value(seed: int, n: int, frequency: float) -> None:
    random = np.random.default_rng(seed)
    C = random.standard_normal((n, n)) + 1j * random.standard_normal((n, n))
    turn = np.exp(1j * frequency * np.arange(n))
    np.testing.assert_allclose(svd(C * np.outer(turn, turn.conj())), svd(C), atol=1e-10 * svd(C)[0])


def test_S5a_is_not_true_of_the_real_part() -> None:
    found = contraction(np.tile([1.0, 0.0], (9, 1)), np.tile([1.0, 0.0], (9, 1)), rope(2))
    assert found.rho is not None
    assert found.rho < 0.7


def swapped(vectors: np.ndarray) -> np.ndarray:
    """The two coordinates of each pair exchanged (half layout): R_{-w} = swap R_w swap."""
    half = vectors.shape[1] // 2
    return np.concatenate([vectors[:, half:], vectors[:, :half]], axis=1)


@draws
@given(seeds, st.integers(2, 40), st.integers(1, 6), st.floats(1.5, 1e6), st.booleans())
def test_S5b_whatever_contracts_has_a_twin_that_expands(
    seed: int, n: int, pairs: int, base: float, causal: bool
) -> None:
    """rho(Q, K) rho(rope(Q) swap, rope(K) swap) = 1, under a causal mask too; the spectra change places."""
    random = np.random.default_rng(seed)
    encoding = rope(2 * pairs, base=base)
    assert encoding.rotary is not None
    q, k = random.standard_normal((n, 2 * pairs)), random.standard_normal((n, 2 * pairs))
    twin_q = swapped(encoding.rotary.rotate(q, np.arange(n), side="query"))
    twin_k = swapped(encoding.rotary.rotate(k, np.arange(n), side="key"))
    here, there = (contraction(*both, encoding, causal=causal) for both in ((q, k), (twin_q, twin_k)))
    assert here.rho is not None
    assert there.rho is not None
    assert here.rho * there.rho == pytest.approx(1, abs=1e-10)
    assert here.values is not None
    np.testing.assert_allclose(here.values, there.values_reference, atol=1e-10 * here.norm)
    if here.rho < 1 - 1e-6:
        assert there.maj_gap is not None
        assert there.maj_gap > 0  # its twin cannot be majorised


def test_S5b_cancelling_channels() -> None:
    found = contraction(
        np.tile([1.0, 0.0, 1.0, 0.0], (2, 1)),
        np.tile([1.0, 0.0, -1.0, 0.0], (2, 1)),
        rope(4, base=100.0, pairing="interleaved"),
    )
    assert found.norm_reference == 0
    assert found.norm == pytest.approx(np.cos(0.1) - np.cos(1.0), abs=1e-12)
    assert found.norm == pytest.approx(0.455, abs=5e-4)


def test_S5b_anti_rotating_content_expands() -> None:
    """q_i = k_i = R_{-i} mu: the rotation lines the rows up, a spread spectrum becomes rank one; trace unchanged."""
    n, encoding = 64, rope(16)
    assert encoding.rotary is not None
    mu = np.ones((n, 16))
    q = encoding.rotary.rotate(mu, -np.arange(n), side="query")
    found = contraction(q, q, encoding)
    assert found.rho is not None
    assert found.rho > 1.5
    assert found.maj_gap is not None
    assert found.maj_gap > 0
    assert found.norm == pytest.approx(n * 16)
    assert found.values is not None
    assert found.values_reference is not None
    assert found.values.sum() == pytest.approx(found.values_reference.sum())  # both Gram matrices: equal traces
    # the expansion is the reciprocal of what the constant content suffers (S5g table: h = 16)
    assert found.rho == pytest.approx(1 / contraction(mu, mu, encoding).rho, rel=1e-10)  # type: ignore[operator]


def test_S5c_isotropic_noise_is_untouched() -> None:
    """h = 16, n = 64: mean norm and effective-rank ratios are 1 within their error, and half the draws expand."""
    random = np.random.default_rng(0)
    found = [
        contraction(random.standard_normal((64, 16)), random.standard_normal((64, 16)), rope(16)) for _ in range(300)
    ]
    rho, erank = np.array([f.rho for f in found]), np.array([f.erank_ratio for f in found])
    for ratios in (np.log(rho), np.log(erank)):  # logarithms: S and S_0 have one law, so their mean difference is 0
        assert abs(ratios.mean()) < 4 * ratios.std() / np.sqrt(len(ratios))
    assert 0.35 < (rho > 1).mean() < 0.65
    assert rho.std() == pytest.approx(0.066, abs=0.02)


def test_S5c_needs_isotropic_keys_too() -> None:
    random = np.random.default_rng(1)
    found = [contraction(random.standard_normal((64, 16)), np.ones((64, 16)), rope(16)) for _ in range(50)]
    assert {f.rank_reference for f in found} == {1}
    assert all(f.erank is not None and f.erank > 2 for f in found)
    assert np.mean([f.rho for f in found if f.rho is not None]) == pytest.approx(0.78, abs=0.05)


@draws
@given(seeds, st.integers(1, 40), st.integers(1, 6), st.floats(1.5, 1e6))
def test_S5d_the_shared_component_contracts(seed: int, n: int, pairs: int, base: float) -> None:
    """Means with mu^f conj(nu^f) = a_f >= 0: E S_rope = (sum a) T_n(g) is majorised by E S_none = (sum a) 11^T."""
    random = np.random.default_rng(seed)
    encoding = rope(2 * pairs, base=base)
    mu = random.standard_normal(2 * pairs)
    nu = mu * np.tile(random.uniform(0, 2, pairs), 2)
    g = kernel(mu[None], nu[None], encoding, context=n)
    assert np.abs(g.phi_F).max() < 1e-12
    expected = scipy.linalg.toeplitz(g.g_T)  # E S_rope by metric 3.7
    found = contraction(np.tile(mu, (n, 1)), np.tile(nu, (n, 1)), encoding)
    assert found.maj_ok
    assert found.norm_reference == pytest.approx(n * g.a_F.sum())
    values = np.linalg.eigvalsh(expected)
    assert values.min() >= -1e-9 * values.max()  # phases 0: positive semidefinite
    assert found.norm == pytest.approx(values.max(), rel=1e-9)
    gap = majorisation_gap(values, [n * g.a_F.sum()])
    assert gap is not None
    assert gap <= 1e-9


@draws
@given(seeds, st.integers(1, 30), st.integers(1, 6))
def test_S5d_with_phases_only_the_weaker_bound_survives(seed: int, n: int, pairs: int) -> None:
    random = np.random.default_rng(seed)
    mu, nu = random.standard_normal((1, 2 * pairs)), random.standard_normal((1, 2 * pairs))
    g = kernel(mu, nu, rope(2 * pairs, base=100.0), context=n)
    found = contraction(np.repeat(mu, n, axis=0), np.repeat(nu, n, axis=0), rope(2 * pairs, base=100.0))
    assert found.norm <= n * g.a_F.sum() * (1 + 1e-9)
    assert found.norm_reference <= n * g.a_F.sum() * (1 + 1e-9)


def test_S5d_more_shared_component_more_contraction() -> None:
    """noise + s * mean, h = 16, n = 64: the measured row of the notes, to a few hundredths."""
    random = np.random.default_rng(2)
    ratios, spreads = [], []
    for s in (0.0, 0.5, 1.0, 2.0, 4.0):
        found = []
        for _ in range(60):
            mean = random.standard_normal(16)
            q, k = (random.standard_normal((64, 16)) + s * mean for _ in range(2))
            found.append(contraction(q, k, rope(16)))
        ratios.append(np.mean([f.rho for f in found if f.rho is not None]))
        spreads.append(np.mean([f.erank_ratio for f in found if f.erank_ratio is not None]))
    np.testing.assert_allclose(ratios, [1.01, 0.71, 0.62, 0.60, 0.59], atol=0.06)
    assert (np.diff(spreads) > 0).all()


@draws
@given(seeds, sizes)
def test_S5e_shared_content_matrix(seed: int, n: int) -> None:
    """C_f = a_f C: Re(C o G) is weakly majorised by C, complex or not."""
    random = np.random.default_rng(seed)
    C = random.standard_normal((n, n)) + 1j * random.standard_normal((n, n)) * random.integers(2)
    gap = majorisation_gap(svd((C * correlation(random, n)).real), svd(C))
    assert gap is not None
    assert gap <= 1e-9


def test_S5e_the_reference_is_C_and_not_its_real_part() -> None:
    C = 1j * np.ones((5, 5))
    turn = np.exp(1j * 0.7 * np.arange(5))
    assert svd(C.real)[0] == 0
    assert svd((C * np.outer(turn, turn.conj())).real)[0] > 1


@draws
@given(seeds, st.integers(1, 30), st.integers(1, 6), st.booleans())
def test_S5f_the_cap_holds_masked_or_not(seed: int, n: int, pairs: int, causal: bool) -> None:
    random = np.random.default_rng(seed)
    q, k = random.standard_normal((n, 2 * pairs)), random.standard_normal((n, 2 * pairs))
    encoding = rope(2 * pairs, base=float(10 ** random.uniform(0.5, 6)))
    found = contraction(q, k, encoding, causal=causal)
    z, w = q[:, :pairs] + 1j * q[:, pairs:], k[:, :pairs] + 1j * k[:, pairs:]
    bound = (np.linalg.norm(z, axis=0) * np.linalg.norm(w, axis=0)).sum()
    assert found.norm <= bound * (1 + 1e-12)
    assert found.cap == pytest.approx(bound / found.norm, rel=1e-9)


@pytest.mark.parametrize(("h", "row"), [(16, (0.668, 0.509, 0.357, 0.210)), (64, (0.709, 0.559, 0.409, 0.259))])
def test_S5g_the_contraction_law(h: int, row: tuple[float, ...]) -> None:
    """The table of section 2.3 from the factors of constant content, its lower bound, and the logarithmic law."""
    for n, expected in zip((32, 128, 512, 2048), row, strict=True):
        constant = np.tile(np.repeat([1.0, 0.0], h // 2), (n, 1))  # equal weights on all pairs, phase 0
        rho = contraction(constant, constant, rope(h)).rho
        assert rho == pytest.approx(expected, abs=6e-4)
        frequency = 10000.0 ** (-2 * np.arange(h // 2) / h)
        bound = np.mean((np.sin(n * frequency / 2) / (n * np.sin(frequency / 2))) ** 2)
        assert rho is not None
        assert bound <= rho
        assert rho == pytest.approx(1 - np.log(n / 2.52) / np.log(1e4) - 1 / h, abs=0.015)


@draws
@given(seeds, sizes)
def test_S6_masking_commutes_and_contraction_survives(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    C, G = random.standard_normal((n, n)), correlation(random, n)
    np.testing.assert_array_equal(np.tril(C * G), np.tril(C) * G)
    gap = majorisation_gap(svd(np.tril(C * G)), svd(np.tril(C)))
    assert gap is not None
    assert gap <= 1e-9


def test_S6_triangular_truncation_grows_like_the_logarithm() -> None:
    """Against the unmasked matrix nothing survives: tril of the skew Hilbert matrix over its own norm."""
    ratios = []
    for n in (16, 64, 256, 1024):
        offset = np.subtract.outer(np.arange(n), np.arange(n)).astype(float)
        hilbert = np.divide(1.0, offset, out=np.zeros_like(offset), where=offset != 0)
        ratios.append(np.linalg.norm(np.tril(hilbert), 2) / np.linalg.norm(hilbert, 2))
    np.testing.assert_allclose(ratios, [1.00, 1.32, 1.71, 2.13], atol=0.006)
    assert np.diff(ratios)[-1] == pytest.approx(np.log(4) / np.pi, abs=0.03)


@draws
@given(seeds, sizes, st.floats(0.01, 3))
def test_S7_exp_turns_a_bias_into_a_product(seed: int, n: int, slope: float) -> None:
    """exp(S + B) = exp(S) o exp(B), and exp(ALiBi) is a correlation matrix: the kernel contracts."""
    random = np.random.default_rng(seed)
    S, B = random.standard_normal((n, n)), -slope * scipy.linalg.toeplitz(np.arange(n))
    np.testing.assert_allclose(np.exp(S + B), np.exp(S) * np.exp(B), rtol=1e-12)
    values = np.linalg.eigvalsh(np.exp(B))
    low, high = np.sinh(slope) / (np.cosh(slope) + 1), np.sinh(slope) / (np.cosh(slope) - 1)
    assert low - 1e-9 <= values[0] <= values[-1] <= high + 1e-9  # the symbol's range (2.5)
    gap = majorisation_gap(svd(np.exp(S + B)), svd(np.exp(S)))
    assert gap is not None
    assert gap <= 1e-9


def test_S7_bidirectional_alibi_widens_the_logits_all_the_same() -> None:
    random = np.random.default_rng(3)
    q, k = random.standard_normal((200, 8)), random.standard_normal((200, 8))
    found = contraction(q, k, alibi(8))
    assert found.rho is not None
    assert found.rho > 5
    assert found.maj_ok is False


def test_S7_softmax_keeps_none_of_it() -> None:
    """After normalising rows the spectral norm can grow under ALiBi."""
    random = np.random.default_rng(4)
    grown = 0
    for _ in range(50):
        S, B = 3 * random.standard_normal((8, 8)), -1.0 * scipy.linalg.toeplitz(np.arange(8))
        with_bias, without = (part / part.sum(axis=1, keepdims=True) for part in (np.exp(S + B), np.exp(S)))
        grown += (majorisation_gap(svd(with_bias), svd(without)) or 0) > 1e-6
    assert grown > 0
