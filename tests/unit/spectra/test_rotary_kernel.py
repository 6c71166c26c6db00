"""The rotary kernel's closed form: equal to dense, flat in n, and the table of section 2.3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.foreseeing import foreseen
from toposcope.core.errors import BadValue
from toposcope.spectra.rotary_kernel import (
    constant_vector_bound,
    contraction_law,
    dirichlet,
    kernel_spectrum,
    kernel_values,
    peak_offset,
    positions_factor,
)
from toposcope.spectra.toeplitz import toeplitz_matrix

CONTEXTS = (32, 128, 512, 2048, 8192, 32768, 131072, 10**6)
TABLE = {
    16: (0.668, 0.509, 0.357, 0.210, 0.076, 0.071, 0.065, 0.063),
    64: (0.709, 0.559, 0.409, 0.259, 0.115, 0.045, 0.020, 0.016),
    128: (0.717, 0.566, 0.416, 0.267, 0.122, 0.048, 0.018, 0.009),
}
# slow, coinciding, still, and half-turn frequencies among ordinary ones
frequency = st.one_of(
    st.sampled_from([0.0, 1.0, np.pi, np.pi / 2, 2 * np.pi, 1e-5, 1e-9]),
    st.floats(0, 6.5, allow_subnormal=False),
    st.floats(-3, 3, allow_subnormal=False),
)
contexts = st.one_of(st.sampled_from([1, 2, 3, 512]), st.integers(1, 130))


def rope(h: int, base: float = 1e4) -> tuple[np.ndarray, np.ndarray]:
    return base ** (-np.arange(0, h, 2) / h), np.full(h // 2, 2 / h)


def dense(w: np.ndarray, a: np.ndarray, n: int, phi: np.ndarray | None = None) -> np.ndarray:
    return toeplitz_matrix(kernel_values(np.arange(1 - n, n), w, a, phi))


@pytest.mark.parametrize("h", TABLE)
def test_table_of_section_2_3(h: int) -> None:
    found = [kernel_spectrum(*rope(h), n).lambda_max_over_n for n in CONTEXTS]
    assert tuple(round(value, 3) for value in found) == TABLE[h]


@settings(deadline=None)
@given(st.lists(st.tuples(frequency, st.floats(0, 2, allow_subnormal=False)), min_size=1, max_size=9), contexts)
def test_closed_form_equals_dense_for_weights_that_are_not_negative(pairs: list[tuple[float, float]], n: int) -> None:
    w, a = np.array(pairs).T
    expected = np.linalg.eigvalsh(dense(w, a, n))[::-1]
    found = np.zeros(n)
    values = kernel_spectrum(w, a, n).values
    found[: len(values)] = values
    assert np.abs(found - expected).max() <= 1e-12 * max(expected[0], 1e-300) + 1e-300


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(frequency, st.floats(-2, 2, allow_subnormal=False), st.floats(-7, 7, allow_subnormal=False)),
        min_size=1,
        max_size=9,
    ),
    contexts,
    st.booleans(),
)
def test_signs_and_phases_equal_the_dense_svd(
    pairs: list[tuple[float, float, float]], n: int, with_phases: bool
) -> None:
    w, a, phi = np.array(pairs).T
    matrix = dense(w, a, n, phi if with_phases else None)
    expected = np.linalg.svd(matrix, compute_uv=False)
    found = kernel_spectrum(w, a, n, phi if with_phases else None)
    padded = np.zeros(n)
    padded[: min(n, len(found.values))] = found.sizes[:n]
    assert (found.sizes[n:] <= 1e-12 * n * np.abs(a).sum()).all()
    # cancelling weights leave a norm far below n sum |a|, which is what rounding is measured by
    assert np.abs(padded - expected).max() <= 1e-12 * n * np.abs(a).sum()
    if not with_phases:
        signed = np.sort(np.concatenate([found.values, np.zeros(n)]))
        eigenvalues = np.sort(np.concatenate([np.linalg.eigvalsh(matrix), np.zeros(len(found.values))]))
        assert np.abs(signed - eigenvalues).max() <= 1e-12 * n * np.abs(a).sum()


@pytest.mark.parametrize("h", [2, 16, 64, 128])
@pytest.mark.parametrize("n", [1, 5, 77, 512])
def test_rope_to_1e_12_of_the_top(h: int, n: int) -> None:
    w, a = rope(h)
    expected = np.linalg.eigvalsh(dense(w, a, n))[::-1]
    for spectrum in (kernel_spectrum(w, a, n), kernel_spectrum(w, a, n, np.full(len(w), 1e-300))):
        found = np.zeros(max(n, h))
        found[: len(spectrum.values)] = spectrum.sizes
        assert np.abs(found[:n] - expected).max() <= 1e-12 * expected[0]


@settings(deadline=None)
@given(st.integers(1, 3000), st.lists(st.floats(1e-6, 3, allow_subnormal=False), min_size=1, max_size=6))
def test_the_doubled_factor_is_the_factor_of_all_positions(n: int, w: list[float]) -> None:
    angle = np.arange(n)[:, None] * np.array(w)
    v = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    r = positions_factor(w, n)
    assert len(r) <= 2 * len(w)
    np.testing.assert_allclose(r.T @ r, v.T @ v, atol=1e-11 * n)


@settings(deadline=None)
@given(st.floats(-20, 20, allow_subnormal=False), st.integers(1, 200))
def test_dirichlet_sums(difference: float, n: int) -> None:
    x = np.arange(n) - (n - 1) / 2
    assert dirichlet(difference, n) == pytest.approx(np.cos(difference * x).sum(), abs=1e-9 * n)
    for turns in (-2, -1, 0, 1, 3):
        exact = n * (-1.0) ** (turns * (n - 1))
        assert dirichlet(2 * np.pi * turns, n) == pytest.approx(exact, rel=1e-9)


@settings(deadline=None)
@given(
    st.lists(st.tuples(frequency, st.floats(0.01, 2, allow_subnormal=False)), min_size=1, max_size=9),
    st.one_of(st.integers(1, 2000), st.just(10**6)),
)
def test_exact_properties(pairs: list[tuple[float, float]], n: int) -> None:
    """Trace n sum a, rank at most 2F and n, norm between the constant vector's and the trace (S2)."""
    w, a = np.array(pairs).T
    found = kernel_spectrum(w, a, n)
    assert found.values.sum() == pytest.approx(n * a.sum(), rel=1e-9)
    assert found.rank <= min(n, 2 * len(w))
    assert constant_vector_bound(w, a, n) <= found.lambda_max_over_n * (1 + 1e-9)
    assert found.lambda_max_over_n <= a.sum() * (1 + 1e-9)
    rank = found.effective_rank
    assert rank is not None
    assert 1 - 1e-9 <= rank <= min(n, 2 * len(w)) * (1 + 1e-9)


def test_one_frequency_and_its_limits() -> None:
    assert kernel_spectrum([0.0], [1.0], 50).values[0] == pytest.approx(50)
    assert kernel_spectrum([0.0], [1.0], 50).rank == 1
    assert kernel_spectrum([1.0], [3.0], 1).lambda_max_over_n == pytest.approx(3)
    half_turn = kernel_spectrum([np.pi], [1.0], 50)
    assert half_turn.rank == 1
    assert half_turn.lambda_max_over_n == pytest.approx(1)
    long = kernel_spectrum(*rope(16), 10**9)
    assert long.lambda_max_over_n == pytest.approx(1 / 16, rel=1e-3)


def test_law_of_contraction() -> None:
    for n, h, law in ((32, 128, 0.716), (2048, 64, 0.257), (32, 16, 0.661)):
        found = contraction_law(n, 1e4, h)
        assert found is not None
        assert round(found, 3) == law
        assert found == pytest.approx(kernel_spectrum(*rope(h), n).lambda_max_over_n, abs=0.01)
    one, four = contraction_law(100, 1e4, 64), contraction_law(400, 1e4, 64)
    assert one is not None
    assert four is not None
    assert one - four == pytest.approx(0.1505, abs=5e-5)
    assert contraction_law(10**6, 1e4, 64) is None
    assert contraction_law(1, 1e4, 64) is None


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 100))
def test_a_kernel_built_to_look_t_back_peaks_there(t: int, seed: int) -> None:
    w, a = rope(64)
    a = a * np.random.default_rng(seed).uniform(0.5, 1.5, len(a))
    assert peak_offset(w, a, -w * t, reach=200) == t
    assert peak_offset(w, a, w * t, reach=200, causal=False) == -t


def test_a_context_that_no_array_could_hold() -> None:
    w, a = rope(128)
    n = 2**40
    found = kernel_spectrum(w, a, n)
    assert found.values.sum() == pytest.approx(n * np.sum(a), rel=1e-9)  # the trace: n times the diagonal
    assert found.lambda_max_over_n == pytest.approx(np.max(a) / 2, rel=0.02)  # S5g: flat at max a_f / 2


def test_bad_input_is_refused_with_a_sentence() -> None:
    with pytest.raises(BadValue, match="context"):
        kernel_spectrum([1.0], [1.0], 0)
    with pytest.raises(BadValue, match="one weight"):
        kernel_spectrum([1.0, 2.0], [1.0], 5)
    with pytest.raises(BadValue, match="NaN"):
        kernel_spectrum([np.nan], [1.0], 5)
    with pytest.raises(BadValue, match="reach"):
        peak_offset([1.0], [1.0], reach=-1)


def test_a_kernel_without_weight_lists_as_many_zeros_as_it_could_have_values() -> None:
    for n, listed in ((3, 3), (4, 4), (50, 4)):
        np.testing.assert_array_equal(kernel_spectrum([1.0, 0.3], [0.0, 0.0], n).values, np.zeros(listed))


def test_the_reach_itself_is_searched() -> None:
    """cos(w (t - 5)) is largest at 5; before that it only rises."""
    w = 0.1
    for reach, peak in ((4, 4), (5, 5), (9, 5)):
        assert peak_offset([w], [1.0], [-5 * w], reach=reach) == peak
    assert peak_offset([w], [1.0], [5 * w], reach=5, causal=False) == -5
    assert peak_offset([w], [1.0], [5 * w], reach=5) == 0  # what is ahead is hidden unless told
    assert peak_offset([w], [1.0], [0.3], reach=0) == 0


def test_kernels_longer_than_a_block_are_read_in_pieces() -> None:
    w, a, phi = np.array([0.3, 1.1]), np.array([2.0, -1.0]), np.array([0.4, -0.2])
    offsets = np.arange(-9000.0, 9000.0)
    expected = 2 * np.cos(0.3 * offsets + 0.4) - np.cos(1.1 * offsets - 0.2)
    np.testing.assert_allclose(kernel_values(offsets, w, a, phi), expected, atol=1e-12)
    np.testing.assert_allclose(kernel_values(3, w, a, phi), expected[offsets == 3])


def test_a_phase_of_a_half_turn_is_a_sign() -> None:
    for n in (5, 40):
        turned = kernel_spectrum([0.3, 1.1], [2.0, 1.0], n, [0.0, np.pi])
        signed = kernel_spectrum([0.3, 1.1], [2.0, -1.0], n)
        np.testing.assert_allclose(turned.sizes[:4], signed.sizes[:4], atol=1e-12 * n)
        assert (turned.values >= 0).all()
        assert (signed.values < 0).any()
        assert (np.diff(np.abs(signed.values)) <= 1e-12 * n).all()  # the largest first


def test_weights_of_any_size() -> None:
    w = np.array([0.2, 0.9, 2.0])
    for a in (np.array([1.0, 0.5, 0.25]), np.array([1.0, -0.5, 0.25])):
        plain = kernel_spectrum(w, a, 30)
        for size in (1e-200, 1e200):
            found = kernel_spectrum(w, size * a, 30)
            np.testing.assert_allclose(found.values / size, plain.values, rtol=1e-12, atol=1e-12)
            assert found.context == 30


def test_the_law_holds_from_eight_positions_to_the_base() -> None:
    for n, base, inside in ((7, 100.0, False), (8, 100.0, True), (100, 100.0, True), (101, 100.0, False)):
        found = contraction_law(n, base, 16)
        assert (found is not None) == inside
        if found is not None:
            shift = np.exp(1.5 - np.euler_gamma)  # n / 2.52
            assert found == pytest.approx(1 - np.log(n / shift) / np.log(base) - 1 / 16, rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 9, 64])
def test_the_constant_vectors_bound_is_its_rayleigh_quotient(n: int) -> None:
    w, a = np.array([0.0, 0.3, 1.7]), np.array([0.5, 2.0, -1.0])
    assert constant_vector_bound(w, a, n) == pytest.approx(dense(w, a, n).sum() / n**2, rel=1e-10)


def test_of_peaks_that_tie_the_nearest_is_taken() -> None:
    w = 2 * np.pi / 8
    assert peak_offset([w], [1.0], reach=100) == 0
    assert peak_offset([w], [1.0], [-5 * w], reach=100) == 5
    assert peak_offset([w], [1.0], [-5 * w], reach=100, causal=False) == -3
    assert peak_offset([w], [1.0], [-4 * w], reach=100, causal=False) == 4  # the past before the future
    near = [0.01, 1.0]  # a lower peak is no tie
    assert peak_offset([w / 4, w], near, [-16 * w / 4, -5 * w], reach=30) == 13
    assert peak_offset([0.001], [1.0], [-1024 * 0.001]) == 1024  # as far as it looks unless told
    assert peak_offset([0.001], [1.0], [-1500 * 0.001]) == 1024


def test_a_tie_is_within_rounding_only() -> None:
    """Two peaks, the farther higher by a relative 4e-12 or by 0.2e-12 of the weights."""
    for more, peak in ((4e-12, 6), (0.2e-12, 0)):
        # at multiples of 6 the first wave is 1, and the slow second one is larger at 6 than at 0
        slow = np.pi / 6
        assert peak_offset([2 * np.pi / 6, slow], [1.0, more / 2], [0.0, np.pi], reach=7) == peak


@pytest.mark.parametrize(
    ("w", "a", "phi"),
    [
        ([], [], None),
        ([[1.0]], [[1.0]], None),
        ([1.0], [1.0, 2.0], None),
        ([1.0], [1.0], [0.0, 1.0]),
        ([1.0], [np.inf], None),
        ([1.0], [1.0], [np.nan]),
        ([np.inf], [1.0], None),
    ],
)
def test_frequencies_weights_and_phases_belong_together(w: object, a: object, phi: object) -> None:
    for call in (lambda: kernel_values([0, 1], w, a, phi), lambda: kernel_spectrum(w, a, 4, phi)):  # type: ignore[arg-type]
        with pytest.raises(BadValue):
            call()
    with pytest.raises(BadValue):
        kernel_spectrum([1.0], [1.0], -1)


def test_one_position_has_one_value() -> None:
    for a in ([2.0, 1.0], [2.0, -1.0]):
        found = kernel_spectrum([0.4, 1.0], a, 1)
        assert found.lambda_max_over_n == pytest.approx(abs(sum(a)))
        assert found.rank == 1
    np.testing.assert_allclose(np.abs(positions_factor([0.4, 1.0], 1)), [[1, 1, 0, 0]], atol=1e-15)


def test_a_kernel_foresees_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = np.linspace(0, 3, 200), np.full(200, 1 / 200)
    asked, peak = foreseen(monkeypatch, "toposcope.spectra.rotary_kernel", lambda: kernel_spectrum(w, a, 1000))
    assert 0.7 * peak < asked < 1.5 * peak
