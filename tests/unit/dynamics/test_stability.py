"""The certified distance to a vertical line: below everything, attained, and tight."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.dynamics import stability
from toposcope.dynamics.pencil import Pencil
from toposcope.dynamics.regime import Verdict, regime
from toposcope.dynamics.stability import (
    MOST_SAMPLES,
    TIGHTNESS,
    LineDistance,
    _Line,
    best_line,
    distance_to_line,
    least_between,
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
    """100 random w each, 20 000 values in all: on and near the dips, and far out."""
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
    assert distance_to_line(np.zeros((3, 3))) == LineDistance(0.0, 0.0, 0.0, 0)
    assert distance_to_line(np.zeros((0, 0)), 0.5) == LineDistance(0.5, 0.0, 0.0, 0)
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
        pencil, at = Pencil(scale * matrix), scale * z
        truth = np.abs(spectrum - z).min()
        assert not pencil.surely_above(at, (scale * (truth * (1 + 1e-13) + 1e-14)) ** 2)
        # what Cholesky may be wrong by, a few times over
        size = len(matrix)
        noise = 8 * (size + 4) * np.finfo(float).eps * (np.linalg.norm(matrix) + np.sqrt(size) * abs(z)) ** 2
        if truth**2 > noise:
            assert pencil.surely_above(at, scale**2 * (truth**2 - noise))


@pytest.mark.parametrize("size", [3, 195])
def test_a_factorisation_proves_what_is_true_and_nothing_else(size: int) -> None:
    random = np.random.default_rng(8)
    pencil = Pencil(random.standard_normal((size, size)) / np.sqrt(size))
    for z in (0.1j, 0.4 + 0.3j, -1.7 + 0.2j):
        value = np.linalg.svd(pencil.matrix - z * np.eye(size), compute_uv=False)[-1]
        for share, proven in ((0.999, True), (1.001, False)):
            assert bool(pencil.surely_above(z, share * value**2)) is proven


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
        pencil = Pencil(scale * matrix)
        values, floors = np.array([pencil.least(scale * complex(s, w)) for w in frequencies]).T / scale
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


def dipping(at: float, depth: float = 1e-2) -> np.ndarray:
    """A normal matrix of norm 4 whose least singular value on the axis dips to `depth` at w = `at` alone."""
    return normal(np.random.default_rng(0), [complex(-depth, at), complex(-1.5, 0.4)], 4.0)[0]


@pytest.mark.parametrize("at", np.linspace(0.05, 3.95, 14))
def test_a_dip_anywhere_on_the_line_is_found_from_a_bad_start(at: float) -> None:
    """The search knows one place far away, and the proof comes upon the dip all the same."""
    line = _Line(Pencil(dipping(at)), 0.0)
    line.look(np.array([4.0]))
    assert line.best > 0.04**2
    found = line.distance(0.8)
    assert found.s == 0.0
    assert 0.0079 <= found.lower <= 0.01 * (1 + 1e-9)
    assert 0.01 * (1 - 1e-9) <= found.upper <= 0.0125
    assert 1 < found.samples < 100


@pytest.mark.parametrize("hidden", [0.3, 1.0, 2.5])
def test_a_guess_that_is_far_too_high_deceives_nobody(hidden: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors at random instead of the best ones: the proof finds out, and ends where it would have."""
    matrix = dipping(hidden)
    random = np.random.default_rng(3)

    def misled(self: Pencil, points: np.ndarray, steps: int = 3) -> tuple[np.ndarray, np.ndarray]:
        real, imaginary = random.standard_normal((2, self.size, len(points)))
        whole = real + 1j * imaginary
        return self._of_vectors(points, whole / np.linalg.norm(whole, axis=0))

    monkeypatch.setattr(Pencil, "guess", misled)
    found = distance_to_line(matrix)
    assert TIGHTNESS * 0.01 * (1 - 1e-6) <= found.lower <= 0.01 * (1 + 1e-9)
    assert found.samples < MOST_SAMPLES


def test_a_bound_is_a_share_of_the_least_value() -> None:
    valley = np.random.default_rng(0).standard_normal((20, 20))  # long and flat
    samples = []
    for tightness in (0.5, 0.8, 0.95):
        found = distance_to_line(dipping(1.0), tightness=tightness)
        assert tightness * 0.01 * (1 - 1e-9) <= found.lower <= 0.01
        assert found.upper == pytest.approx(0.01, rel=1e-6)
        samples.append(distance_to_line(valley, 0.1, tightness=tightness).samples)
    assert samples == sorted(samples)
    assert samples[0] < samples[-1]


def test_a_search_that_ends_too_soon_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = distance_to_line(dipping(1.234567))
    monkeypatch.setattr(stability, "MOST_SAMPLES", 3)
    found = distance_to_line(dipping(1.234567))
    assert whole.lower > 0
    assert (found.lower, found.samples) == (0.0, 3)
    assert found.upper == pytest.approx(0.01, rel=1e-4)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 7))
def test_the_chord_is_below_and_the_parabolas_above(seed: int, size: int) -> None:
    """Between any two frequencies, near each other or far apart, on both sides of 0, and on any line."""
    matrix, random = drawn(seed, size)
    norm = np.linalg.norm(matrix, 2)
    s = float(random.uniform(-1, 1) * norm)
    a, b = np.sort(random.uniform(-2, 2, 2)) * norm * 10.0 ** random.uniform(-3, 0)
    at_a, at_b = smallest(matrix, s, np.array([a, b])) ** 2
    inside = smallest(matrix, s, np.linspace(a, b, 50)) ** 2
    below = least_between(a, at_a, b, at_b)
    assert below <= inside.min() + 1e-10 * norm**2
    assert below >= min(at_a, at_b) - (b - a) ** 2 / 4 - 1e-10 * norm**2
    assert below == pytest.approx(least_between(b, at_b, a, at_a), abs=1e-12 * norm**2)
    line = _Line(Pencil(matrix), s)
    line.look(random.uniform(0, 1, 3) * norm)
    everywhere = np.linspace(-2, 2, 60) * norm
    assert (line.above(everywhere) >= smallest(matrix, s, everywhere) ** 2 - 1e-9 * norm**2).all()


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (-1.0, 0.5), (0.2, 0.3)])
def test_the_chord_of_one_eigenvalue_is_the_truth(a: float, b: float) -> None:
    """F(w) = d^2 + (w - f)^2 of a single pair: F - w^2 is a straight line, and the least value is found exactly."""
    depth, f = 0.1, 0.25
    least = least_between(a, depth**2 + (a - f) ** 2, b, depth**2 + (b - f) ** 2)
    assert least == pytest.approx(depth**2 + max(0.0, a - f, f - b) ** 2, rel=1e-12)
    assert least_between(0.0, 1.0, 1.0, 1.0) == pytest.approx(0.75)
    assert least_between(0.0, 2.0, 1.0, 1.0) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(2, 12))
def test_guesses_are_above(seed: int, size: int) -> None:
    guessed(seed, size)


def test_guesses_are_mostly_near() -> None:
    """Of single matrices they need not be: where singular values lie close together the power method is slow."""
    ratios = np.concatenate([guessed(seed, 2 + seed % 11) for seed in range(66)])
    assert np.median(ratios) < 1.0001
    assert np.quantile(ratios, 0.9) < 1.01


def guessed(seed: int, size: int) -> np.ndarray:
    """How many times too large guesses of the square are; none is too small, and no frequency beyond the norm."""
    matrix, random = drawn(seed, size)
    norm = np.linalg.norm(matrix, 2)
    points = (random.uniform(-1, 1, 20) + 1j * random.uniform(0, 1, 20)) * norm
    truth = np.array([smallest(matrix, z.real, np.array([z.imag]))[0] for z in points]) ** 2
    squares, middles = Pencil(matrix).guess(points, 8)
    assert (squares >= truth * (1 - 1e-9) - 1e-14 * norm**2).all()
    assert (np.abs(middles) <= norm * (1 + 1e-12)).all()
    return squares / np.maximum(truth, 1e-14 * norm**2)


@pytest.mark.parametrize("size", [2, 6, 24])
def test_eigenvectors_that_cannot_be_inverted_are_replaced(size: int) -> None:
    """A Jordan block has one eigenvector; guesses of a matrix nearby are above the truth and mostly near it."""
    jordan = -0.3 * np.eye(size) + np.diag(np.ones(size - 1), 1)
    points = 0.5 + 1j * np.linspace(0, 2, 20)
    squares = Pencil(jordan).guess(points, 8)[0]
    truth = smallest(jordan, 0.5, points.imag) ** 2
    assert (squares >= truth * (1 - 1e-9)).all()
    assert np.median(squares / truth) < 1.05
    zero = Pencil(np.zeros((size, size)))
    np.testing.assert_allclose(zero.guess(points)[0], np.abs(points) ** 2)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize(("s", "w"), [(0.0, 0.0), (0.5, 0.0), (0.0, 2.0), (-3.0, 1.0)])
def test_the_room_for_rounding_is_that_of_the_trace(s: float, w: float, scale: float) -> None:
    """M = -I, where nothing is rounded: what is proven ends 4 (n + 4) eps (|M|_F + sqrt(n) |z|)^2 below the truth."""
    size = 8
    pencil, z = Pencil(-scale * np.eye(size)), scale * complex(s, w)
    truth = (1 + s) ** 2 + w * w
    room = 4 * (size + 4) * np.finfo(float).eps * (np.sqrt(size) * (1 + np.hypot(s, w))) ** 2
    assert pencil.surely_above(z, scale**2 * (truth - 1.1 * room))
    assert not pencil.surely_above(z, scale**2 * (truth - 0.9 * room))


@pytest.mark.parametrize("seed", range(12))
def test_the_best_line_of_normal_matrices_is_the_middle_of_the_widest_gap(seed: int) -> None:
    """There beta_s is the distance to the nearest real part, so the best of the candidates is known."""
    random = np.random.default_rng(seed)
    pairs = [complex(*random.uniform(-1, 3, 2)) for _ in range(1 + seed % 5)]
    matrix, _ = normal(random, pairs, 0.7)
    parts = np.unique(np.linalg.eigvals(matrix).real)
    least, most = float(random.uniform(-0.5, 0.5)), float(parts.max())
    if most <= least:
        least = most - 1.0
    edges = [least, *parts[(parts > least) & (parts <= most)]]
    candidates = [least, *((a + b) / 2 for a, b in pairwise(edges))]
    gaps = [np.abs(parts - s).min() for s in candidates]
    found = best_line(matrix, least, most)
    assert found.s == pytest.approx(candidates[int(np.argmax(gaps))], abs=1e-9)
    assert TIGHTNESS * max(gaps) * 0.999 <= found.lower <= max(gaps) * 1.001
    below = best_line(matrix, least, (least + most) / 2)  # a line left of `most` alone
    assert least <= below.s < (least + most) / 2


def test_of_promising_lines_the_one_with_the_larger_distance_is_taken() -> None:
    """Real parts 1, 4 and 6.8, the first two coupled so strongly that their wider gap is the worse line."""
    matrix = np.array([[1.0, 30.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 6.8]])
    found = best_line(matrix, 0.5, 6.8)
    assert found.s == pytest.approx(5.4)
    near = smallest(matrix, 2.5, np.linspace(0, 8, 400)).min()
    assert found.lower > 2 * near


def test_the_search_does_not_cost_much() -> None:
    """A handful of proofs for well separated spectra, also where singular values must be computed."""
    random = np.random.default_rng(4)
    for share, most in ((0.3, 8), (1e-3, 20), (1e-9, 40)):
        for _ in range(5):
            matrix, _ = normal(random, [complex(-share, 0.6), complex(-0.7, 0.3)], 1.0)
            assert distance_to_line(matrix).samples <= most


@pytest.mark.parametrize("power", [-30, -7, 7, 30])
@pytest.mark.parametrize("share", [0.3, 1e-3, 1e-9, 1e-13])
def test_a_unit_that_is_a_power_of_two_changes_nothing_but_itself(share: float, power: int) -> None:
    """Scaling by it is exact, so bounds scale and the search takes the same way, far from rounding and near it."""
    random = np.random.default_rng(5)
    unit = 2.0**power
    for skew in (0.0, 0.5):
        matrix, _ = normal(random, [complex(-share, 0.6), complex(-0.7, 0.3), complex(0.4, 0.1)], 1.0)
        matrix = matrix + skew * np.triu(random.standard_normal(matrix.shape), 1)
        for s in (0.0, 0.25):
            plain, scaled = distance_to_line(matrix, s), distance_to_line(unit * matrix, unit * s)
            assert (scaled.lower, scaled.upper) == pytest.approx((unit * plain.lower, unit * plain.upper), rel=1e-9)
            assert scaled.samples == plain.samples
        plain, scaled = best_line(matrix, 0.0, 0.4), best_line(unit * matrix, 0.0, unit * 0.4)
        assert (scaled.s, scaled.lower) == pytest.approx((unit * plain.s, unit * plain.lower), rel=1e-9)
        one, two = Pencil(matrix), Pencil(unit * matrix)
        for z in (0.1, 0.1 + 0.3j, 0.1 + 0.6j):
            np.testing.assert_allclose(two.least(unit * z), unit * np.array(one.least(z)), rtol=1e-12)


@pytest.mark.parametrize("norm", [1e-6, 1.0, 1e6])
def test_a_bound_is_proven_down_to_rounding(norm: float) -> None:
    """A distance of a hundred roundings is proven; one within the rounding of a singular value is not."""
    random = np.random.default_rng(6)
    for share, proven in ((130, True), (4, False)):
        truth = share * 5 * np.finfo(float).eps * norm
        for _ in range(5):
            matrix, _ = normal(random, [complex(-truth, 0.61 * norm), complex(-0.5 * norm, 0.3 * norm)], norm)
            found = distance_to_line(matrix)
            assert bool(found.lower > 0.5 * truth) is proven
            assert found.lower <= truth * 1.2


@pytest.mark.parametrize("s", [0.0, -0.3])
def test_singular_values_are_computed_only_where_factors_say_nothing(
    s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far above rounding no singular value is needed; within it some are, at the dip alone."""
    solved: list[complex] = []
    whole = Pencil.least
    monkeypatch.setattr(Pencil, "least", lambda self, z: (solved.append(z), whole(self, z))[1])
    for share, few in ((1e-2, 0), (1e-9, 12)):
        solved.clear()
        matrix, _ = normal(np.random.default_rng(7), [complex(s - share, 0.6), complex(-0.8, 0.3)], 1.0)
        found = distance_to_line(matrix, s)
        assert found.lower > 0.8 * share
        assert len(solved) <= few
        assert bool(solved) is bool(few)
        assert all(abs(z - complex(s, 0.6)) < 0.01 for z in solved)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 8), st.floats(-1, 1))
def test_beyond_the_skew_part_the_least_value_only_grows(seed: int, size: int, s: float) -> None:
    """Where the proof ends: nothing further out is lower."""
    matrix, _ = drawn(seed, size)
    norm = np.linalg.norm(matrix, 2)
    turning = Pencil(matrix).turning
    assert np.linalg.norm((matrix - matrix.T) / 2, 2) <= turning <= norm * (1 + 1e-9)
    values = smallest(matrix, s * norm, turning + norm * np.linspace(0, 3, 40))
    assert (np.diff(values) >= -1e-12 * norm).all()


def test_points_are_proven_together_as_one_by_one() -> None:
    """Of many points of a line all are above their squares, or just one is not: whatever is factored at once."""
    matrix = np.random.default_rng(1).standard_normal((12, 12))
    pencil, w = Pencil(matrix), np.linspace(0, 8, 30)
    points = 0.1 + 1j * w
    squares = smallest(matrix, 0.1, w) ** 2
    for at_once in (1 << 20, 12 * 12 * 7, 1):
        with patch("toposcope.dynamics.pencil.AT_ONCE", at_once):
            assert pencil.surely_above(points, 0.99 * squares).all()
            for wrong in (0, 13, 29):
                high = 0.99 * squares
                high[wrong] = 1.01 * squares[wrong]
                assert np.flatnonzero(~pencil.surely_above(points, high)).tolist() == [wrong]
