"""The certified distance to a vertical line: below everything, attained, and tight."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.dynamics.regime import Verdict, regime
from toposcope.dynamics.stability import MOST_SAMPLES, TIGHTNESS, best_line, distance_to_line

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
