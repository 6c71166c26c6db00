"""The certified distance to a vertical line: below everything, attained, and tight."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.dynamics.regime import Verdict, regime
from toposcope.dynamics.stability import (
    MOST_SAMPLES,
    TIGHTNESS,
    LineDistance,
    _Sampler,
    best_line,
    distance_to_line,
)

from .systems import orthogonal, with_spectrum

seeds = st.integers(0, 2**32 - 1)


def smallest(matrix: np.ndarray, s: float, frequencies: np.ndarray) -> np.ndarray:
    """sigma_min(M - (s + i w) I) by a singular value decomposition at each w."""
    shifted = matrix - (s + 1j * frequencies[:, None, None]) * np.eye(len(matrix))
    return np.linalg.svd(shifted, compute_uv=False)[:, -1]


def drawn(seed: int, size: int) -> tuple[np.ndarray, np.random.Generator]:
    """Matrices of many scales and departures from normality."""
    random = np.random.default_rng(seed)
    return 10.0 ** random.uniform(-3, 3) * with_spectrum(random, size, -2, 1, 10.0 ** random.uniform(-2, 1)), random


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 8), st.booleans())
def test_the_bound_is_below_every_value(seed: int, size: int, shifted: bool) -> None:
    """100 random w each: 20 000 values in all, on and near the dips as well as far out."""
    matrix, random = drawn(seed, size)
    norm = np.linalg.norm(matrix, 2)
    s = float(random.uniform(-1, 1) * norm) if shifted else 0.0
    found = distance_to_line(matrix, s)
    near = np.linalg.eigvals(matrix).imag[random.integers(0, size, 50)] * (1 + 0.1 * random.standard_normal(50))
    frequencies = np.concatenate([random.uniform(-4 * norm, 4 * norm, 50), near])
    values = smallest(matrix, s, frequencies)
    assert found.lower <= values.min() * (1 + 1e-12)
    assert found.lower <= found.upper
    # `upper` is attained: eigenvalues are at least that near; and the two agree, unless a very long flat valley
    # (strongly non-normal matrices) used up the samples: then the bound is lower, never higher
    assert found.upper <= np.abs(np.linalg.eigvals(matrix).real - s).min() * (1 + 1e-6) + 1e-12 * norm
    if found.upper > 1e-10 * norm and found.samples < MOST_SAMPLES:
        assert found.lower >= (TIGHTNESS - 1e-9) * found.upper


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 6))
def test_certified_against_a_very_fine_grid(seed: int, size: int) -> None:
    matrix, _ = drawn(seed, size)
    norm = np.linalg.norm(matrix, 2)
    step = 3 * norm / 3000
    grid = np.concatenate([np.arange(0, 3 * norm, step), np.abs(np.linalg.eigvals(matrix).imag)])
    top = smallest(matrix, 0.0, grid).min()
    found = distance_to_line(matrix)
    assert found.lower <= top * (1 + 1e-12)  # a grid is an upper bound
    if found.upper > 1e-10 * norm and found.samples < MOST_SAMPLES:
        assert found.lower >= TIGHTNESS * (top - step) - 1e-12 * norm  # which is at most a step too high


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 6), st.floats(-6, 6))
def test_scaling_and_orthogonal_changes_of_basis(seed: int, size: int, power: float) -> None:
    matrix, random = drawn(seed, size)
    c, q = 10.0**power, orthogonal(random, size)
    plain = distance_to_line(matrix, 0.1)
    if plain.upper < 1e-8 * np.linalg.norm(matrix, 2) or plain.samples >= MOST_SAMPLES:
        return
    for other, factor in ((distance_to_line(c * matrix, 0.1 * c), c), (distance_to_line(q @ matrix @ q.T, 0.1), 1.0)):
        assert TIGHTNESS * factor * plain.upper * 0.999 <= other.upper <= factor * plain.upper / TIGHTNESS * 1.001
        assert other.lower <= factor * plain.upper * 1.001
        assert plain.lower * factor <= other.upper * 1.001


@pytest.mark.parametrize("frequency", [0.3, 1.0, 7.0, 40.0])
@pytest.mark.parametrize("damping", [1e-2, 1e-4, 1e-7])
def test_a_lightly_damped_block(frequency: float, damping: float) -> None:
    """Eigenvalues -damping +- i frequency of a normal matrix: the distance is the damping, in a very narrow dip."""
    block = np.array([[-damping, frequency], [-frequency, -damping]])
    matrix = np.zeros((4, 4))
    matrix[:2, :2], matrix[2:, 2:] = block, np.diag([-1.0, -50.0])
    q = orthogonal(np.random.default_rng(0), 4)
    found = distance_to_line(q @ matrix @ q.T)
    assert TIGHTNESS * damping * 0.999 <= found.lower <= damping * 1.001
    assert found.upper == pytest.approx(damping, rel=1e-4)
    finer = distance_to_line(q @ matrix @ q.T, tightness=0.98)
    assert 0.979 * damping <= finer.lower <= damping * 1.001


def test_a_jordan_block_is_stable_and_not_robust() -> None:
    """r = 24, every eigenvalue -0.3; a relative error of 1e-6 suffices to push one across the axis."""
    jordan = -0.3 * np.eye(24) + np.diag(np.ones(23), 1)
    found = distance_to_line(jordan)
    assert found.upper < 1e-6
    pushed = jordan.copy()
    pushed[-1, 0] += 1e-6
    assert np.linalg.eigvals(pushed).real.max() > 0
    verdict = regime(np.eye(24), jordan)
    assert verdict.margin is None or verdict.margin < 1e-6


def test_the_zero_matrix_and_the_empty_one() -> None:
    assert distance_to_line(np.zeros((3, 3))).lower == 0.0
    assert distance_to_line(np.zeros((0, 0))).lower == 0.0
    assert distance_to_line(np.zeros((3, 3)), 2.0).lower == pytest.approx(2.0, rel=1 - TIGHTNESS)


def test_the_best_line_of_a_wide_gap() -> None:
    matrix = np.diag([5.0, -1e-9])
    found = best_line(matrix, 0.0, 5.0)
    assert found.s == pytest.approx(2.5)
    assert TIGHTNESS * 2.5 <= found.lower <= 2.5
    verdict = regime(np.eye(2), matrix)
    assert (verdict.verdict, verdict.rule) == (Verdict.NOT_CONVERGENT, "T5")
    assert verdict.margin == pytest.approx(np.sqrt(1 + found.lower / 5) - 1)


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(2, 6))
def test_the_best_line_lies_left_of_an_eigenvalue(seed: int, size: int) -> None:
    matrix, _ = drawn(seed, size)
    parts = np.linalg.eigvals(matrix).real
    if parts.max() <= 0:
        return
    found = best_line(matrix, 0.0, float(parts.max()))
    assert 0.0 <= found.s < parts.max()
    assert found.lower <= np.abs(parts - found.s).min() * (1 + 1e-9)


def normal(random: np.random.Generator, pairs: list[complex], norm: float) -> tuple[np.ndarray, np.ndarray]:
    """A real normal matrix with these eigenvalues, their conjugates and -norm, in a random basis; its spectrum."""
    blocks = [np.array([[value.real, value.imag], [-value.imag, value.real]]) for value in pairs]
    q = orthogonal(random, 2 * len(pairs) + 1)
    spectrum = np.array([*pairs, *np.conj(pairs), -norm])
    return q @ scipy.linalg.block_diag(*blocks, [[-norm]]) @ q.T, spectrum


@pytest.mark.parametrize("scale", [2.0**-20, 1.0, 2.0**20])
@pytest.mark.parametrize("distance", [1e-2, 1e-4])
def test_a_proof_by_factors_leaves_room_for_rounding(distance: float, scale: float) -> None:
    """A value a hair above the true one, which the factorisation alone may pass, is never proven; one below is."""
    random = np.random.default_rng(0)
    for _ in range(200):
        z = complex(random.uniform(-1, 1), random.uniform(0, 1))
        near = z + distance * np.exp(1j * random.uniform(0, 2 * np.pi))
        others = [complex(-0.9, 0.8 * random.random()) for _ in range(7)]
        matrix, spectrum = normal(random, [near, *others], 1.0)
        sampler = _Sampler(scale * matrix, scale * float(np.linalg.norm(matrix, 2)))
        truth = np.abs(spectrum - z).min()
        assert not sampler.surely_above(scale * z.real, scale * z.imag, scale * (truth * (1 + 1e-13) + 1e-14))
        # what Cholesky may be wrong by, a few times over
        size = len(matrix)
        noise = 8 * (size + 4) * np.finfo(float).eps * (np.linalg.norm(matrix) + np.sqrt(size) * abs(z)) ** 2
        if truth**2 > noise:
            assert sampler.surely_above(scale * z.real, scale * z.imag, scale * np.sqrt(truth**2 - noise))


@pytest.mark.parametrize("scale", [2.0**-20, 1.0, 2.0**20])
@pytest.mark.parametrize("distance", [1e-1, 1e-3, 1e-6, 1e-9, 1e-13])
def test_samples_are_right_to_rounding_and_their_floors_below(distance: float, scale: float) -> None:
    """Also where squaring loses all digits: then singular values are computed."""
    random = np.random.default_rng(1)
    eps = np.finfo(float).eps
    for _ in range(50):
        s = random.uniform(-1, 1)
        frequencies = random.uniform(0, 1, 3)
        near = [complex(s, w) + distance * np.exp(1j * random.uniform(0, 6)) for w in frequencies]
        matrix, spectrum = normal(random, near, 1.0)
        sampler = _Sampler(scale * matrix, scale * float(np.linalg.norm(matrix, 2)))
        values, floors = (part / scale for part in sampler(scale * s, scale * frequencies))
        truth = np.abs(spectrum[:, None] - (s + 1j * frequencies)).min(axis=0)
        span = 1 + np.abs(s + 1j * frequencies)
        doubt = 32 * len(matrix) * eps * span  # of a singular value; of its square, times span
        assert (floors <= truth * (1 + 1e-15) + 1e-17).all()
        assert (np.abs(values - truth) <= np.maximum(doubt, 1e-3 * truth)).all()
        by_square = np.sqrt(np.maximum(truth**2 - doubt * span, 0))
        assert (floors >= np.minimum(np.maximum(by_square, 0.9 * truth), truth - doubt)).all()


@pytest.mark.parametrize("share", [1e-3, 1e-8, 1e-12])
def test_the_proven_distance_of_normal_matrices_is_the_true_one(share: float) -> None:
    """From far above rounding down to where it ends; the bound never passes the truth and never gives up before."""
    random = np.random.default_rng(2)
    for _ in range(30):
        norm = 10.0 ** random.uniform(-3, 3)
        truth = share * norm
        pairs = [complex(-truth, random.uniform(0, 1) * norm), complex(-0.5 * norm, 0.3 * norm)]
        matrix, _ = normal(random, pairs, norm)
        found = distance_to_line(matrix)
        slack = 64 * len(matrix) * np.finfo(float).eps * norm
        assert found.lower <= truth + slack
        assert found.lower >= TIGHTNESS * truth * (1 - 1e-6) - slack
        assert found.upper == pytest.approx(truth, rel=1e-3, abs=slack)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_what_lies_within_rounding_of_the_line_is_not_proven_away(scale: float) -> None:
    """An eigenvalue that rounding alone moved off the axis: the lower bound is of the size of rounding."""
    random = np.random.default_rng(3)
    for _ in range(30):
        matrix, _ = normal(random, [complex(0, 0.5 * scale), complex(-0.5 * scale, 0.1 * scale)], scale)
        found = distance_to_line(matrix)
        assert found.lower <= 8 * len(matrix) * np.finfo(float).eps * scale
        assert found.samples < 200  # and the search does not go on in the noise


@pytest.mark.parametrize(("least", "most"), [(2.0, 2.0), (3.0, 2.0)])
def test_no_line_between_no_bounds_proves_nothing(least: float, most: float) -> None:
    assert best_line(np.diag([5.0, -1.0]), least, most) == LineDistance(least, 0.0, 0.0, 0)


def test_the_best_line_may_be_the_least_one() -> None:
    """All eigenvalues far to the right: no middle between them is further away than the least line itself."""
    found = best_line(np.diag([5.0, 5.5]), 0.0, 5.5)
    assert found.s == 0.0
    assert TIGHTNESS * 5 <= found.lower <= 5


def test_the_line_is_sought_between_neighbours() -> None:
    """Real parts 1, 2 and 10: the line furthest from all is at 6, four away from both sides."""
    found = best_line(np.diag([1.0, 2.0, 10.0]), 0.0, 10.0)
    assert found.s == pytest.approx(6.0)
    assert found.lower <= 4.0 <= found.upper * (1 + 1e-12)
