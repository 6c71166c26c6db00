"""The fit on vectors that were turned by known angles: pairs, frequencies, sources, and what is no turning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.live import fit
from toposcope.live.recover import ROUNDING, spread_positions

ROOMY = settings(max_examples=25, deadline=None)


def turned(
    seed: int, *, width: int = 16, pairs: int = 8, top: int = 4096, heads: int = 2, dtype: str = "float64"
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Vectors (T, P, H, R) of which random pairs of channels turn, the positions, the pairs, their frequencies."""
    rng = np.random.default_rng(seed)
    at_P = spread_positions(top)
    pairs_F2 = rng.permutation(width)[: 2 * pairs].reshape(-1, 2)
    pairs_F2.sort(axis=1)
    pairs_F2 = pairs_F2[np.argsort(pairs_F2[:, 0])]
    w_F = np.exp(rng.uniform(np.log(20 / top), np.log(3.0), pairs)) * rng.choice([-1, 1], pairs)
    x = np.repeat(rng.standard_normal((10, 1, heads, width)), len(at_P), axis=1)
    z = x[..., pairs_F2[:, 0]] + 1j * x[..., pairs_F2[:, 1]]
    z = z * np.exp(1j * np.outer(at_P, w_F))[:, None, :]
    x[..., pairs_F2[:, 0]], x[..., pairs_F2[:, 1]] = z.real, z.imag
    rounded = torch.from_numpy(x).to(getattr(torch, dtype)).double().numpy()
    return rounded, at_P, pairs_F2, w_F


@ROOMY
@given(st.integers(0, 10**6), st.sampled_from([4, 7, 8]), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_pairs_and_frequencies_are_recovered(seed: int, pairs: int, dtype: str) -> None:
    x, at_P, pairs_F2, w_F = turned(seed, pairs=pairs, dtype=dtype)
    found = fit.partners(x, ROUNDING[dtype])
    assert found.pairs_F2.tolist() == pairs_F2.tolist()
    assert not len(found.alone)
    assert set(found.still) == set(range(16)) - set(pairs_F2.ravel())
    seen = fit.turning(x, found.pairs_F2)
    frequency_F, error_F = fit.frequencies(seen, at_P, ROUNDING[dtype])
    assert (np.abs(frequency_F - w_F) <= error_F).all()
    assert (error_F * at_P.max() < 12 * ROUNDING[dtype] + 2.0**-23 * np.abs(w_F) * at_P.max()).all()
    assert seen.remainder_PF.max() < 4 * ROUNDING[dtype]
    assert np.abs(seen.length_PF - 1).max() < 4 * ROUNDING[dtype]


@ROOMY
@given(st.integers(0, 10**6), st.floats(0.9, 1.1))
def test_misfit_is_what_a_turning_leaves(seed: int, grown: float) -> None:
    x, at_P, pairs_F2, w_F = turned(seed, pairs=4)
    seen = fit.turning(x, pairs_F2)
    angle_PF = np.outer(at_P, w_F * 1.01)
    z = x[..., pairs_F2[:, 0]] + 1j * x[..., pairs_F2[:, 1]]
    left = np.abs(z - grown * np.exp(1j * angle_PF)[:, None, :] * z[:, :1]) ** 2
    assert np.allclose(seen.misfit_PF(angle_PF, grown), left.sum((0, 2)), atol=1e-9)
    assert seen.misfit_PF(np.outer(at_P, w_F)).max() < 1e-9


def test_lengths_and_growth() -> None:
    x, at_P, pairs_F2, w_F = turned(3)
    grown = x * np.exp(-1e-3 * at_P)[:, None, None]
    seen = fit.turning(grown, pairs_F2)
    assert np.allclose(seen.length_PF, np.exp(-1e-3 * at_P)[:, None])
    assert np.allclose(fit.frequencies(seen, at_P, 1e-12)[0], w_F, rtol=1e-9)


def test_channels_that_move_without_turning_have_no_partner() -> None:
    x, at_P, _, _ = turned(5, pairs=4)
    still = fit.partners(x, 1e-9).still
    x[..., still[0]] += at_P[:, None]  # something is added, as no rotation does
    found = fit.partners(x, 1e-9)
    assert still[0] in found.alone
    assert len(found.pairs_F2) == 4


def test_nothing_turns() -> None:
    x = np.repeat(np.random.default_rng(0).standard_normal((5, 1, 2, 6)), 7, axis=1)
    found = fit.partners(x, 2.0**-24)
    assert not len(found.pairs_F2)
    assert len(found.still) == 6
    assert fit.movement(x).max() == 0
    w_F, error_F = fit.frequencies(fit.turning(x, found.pairs_F2), np.arange(7), 1e-9)
    assert w_F.shape == error_F.shape == (0,)


@ROOMY
@given(st.integers(0, 10**6))
def test_sources_are_found_whatever_their_order_and_factor(seed: int) -> None:
    rng = np.random.default_rng(seed)
    maps = [rng.standard_normal((10, wide)) for wide in (40, 9, 30)]
    first, second = rng.permutation(40)[:6], rng.permutation(30)[:4]
    x = np.concatenate([maps[0][:, first] * 1.3, maps[2][:, second] * -0.5], axis=1)
    found = fit.sources(x, maps, 2.0**-53)
    assert np.allclose(found.gain_R, [1.3] * 6 + [-0.5] * 4)
    assert found.row_R.tolist() == [*np.argsort(np.argsort(first)), *(6 + np.argsort(np.argsort(second)))]
    alone = fit.sources(rng.standard_normal((10, 3)), maps, 2.0**-53)
    assert np.isnan(alone.gain_R).all()
    assert (alone.row_R == -1).all()


@pytest.mark.parametrize("top", [2, 5, 64, 1000, 131072])
def test_positions_are_spread_and_can_be_unwrapped(top: int) -> None:
    at_P = spread_positions(top)
    assert at_P[0] == 0
    assert at_P[-1] == top - 1
    assert (np.diff(at_P) > 0).all()
    assert (at_P[2:] <= 2 * at_P[1:-1]).all()  # none is more than twice the one before
