"""The randomised twin: the same spectra, a random orientation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.dynamics.systems import make_head, random_head
from toposcope.scanning.baseline import randomised

NAMES = ("q", "k", "v", "o")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 12))
def test_each_factor_keeps_its_singular_values(seed: int, d: int, r: int) -> None:
    random = np.random.default_rng(seed)
    head = random_head(random, d, r)
    twin = randomised(head, random)
    for name in NAMES:
        ours, theirs = getattr(twin, name), getattr(head, name)
        assert ours.shape == theirs.shape
        before = np.linalg.svd(theirs, compute_uv=False)
        np.testing.assert_allclose(np.linalg.svd(ours, compute_uv=False), before, atol=1e-10 * before[0])
    if r <= d:  # the Gram matrix of each factor's channels as well
        np.testing.assert_allclose(twin.v @ twin.v.T, head.v @ head.v.T, atol=1e-10 * np.linalg.norm(head.v) ** 2)
        np.testing.assert_allclose(twin.o.T @ twin.o, head.o.T @ head.o, atol=1e-10 * np.linalg.norm(head.o) ** 2)


def test_orientation_differs_and_follows_the_seed() -> None:
    head = random_head(np.random.default_rng(0), 10, 3)
    first, again, other = (randomised(head, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for name in NAMES:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.allclose(getattr(first, name), getattr(other, name))
        assert not np.allclose(getattr(first, name), getattr(head, name))
    assert np.linalg.norm(first.v @ first.o - head.v @ head.o) > 0.1
    assert first.scale == head.scale


@pytest.mark.parametrize(("d", "r"), [(3, 1), (6, 4)])
def test_no_side_is_preferred(d: int, r: int) -> None:
    """With V = O^T = orthonormal rows, tr(V O) has mean 0 over twins, and each entry too.

    The signs of a Householder factorisation would give it a mean near 0.64 r/d.
    """
    eye = np.eye(r, d)
    head = make_head(eye, eye, eye, eye.T)
    random = np.random.default_rng(3)
    draws = 1500
    traces = [np.trace((twin := randomised(head, random)).v @ twin.o) for _ in range(draws)]
    assert abs(np.mean(traces)) < 4 * np.std(traces) / np.sqrt(draws)
    assert np.std(traces) == pytest.approx(np.sqrt(r / d), rel=0.1)
