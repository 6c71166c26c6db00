"""ALiBi's two matrices: closed forms equal to dense, one negative eigenvalue, the symbol as a hull."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toposcope.core.errors import BadValue
from toposcope.spectra import bias_kernel as bias
from toposcope.spectra.toeplitz import effective_rank

slopes = st.floats(2**-12, 60)
contexts = st.one_of(st.sampled_from([1, 2, 3, 4, 511, 512]), st.integers(1, 120))


def distance(n: int) -> np.ndarray:
    return np.abs(np.subtract.outer(np.arange(n), np.arange(n)))


@settings(deadline=None)
@given(slopes, contexts)
def test_logits_equal_dense_and_have_one_negative_eigenvalue(slope: float, n: int) -> None:
    found, expected = bias.alibi_logit_eigenvalues(slope, n), np.linalg.eigvalsh(-slope * distance(n))
    assert len(found) == n
    assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()
    assert (found < 0).sum() == (1 if n > 1 else 0)
    if n > 1:
        negative, largest, least = bias.alibi_logit_extremes(slope, n)
        assert negative == found[0]
        assert (largest, least) == (pytest.approx(found[-1]), pytest.approx(found[1]))


@settings(deadline=None)
@given(slopes, contexts)
def test_kernel_equals_dense_and_lies_inside_the_symbol(slope: float, n: int) -> None:
    found, expected = bias.alibi_kernel_eigenvalues(slope, n), np.linalg.eigvalsh(np.exp(-slope * distance(n)))
    assert np.abs(found - expected).max() <= 1e-12 * expected.max()
    low, high = bias.alibi_symbol_range(slope)
    assert low * (1 - 1e-12) <= found[0]
    assert found[-1] <= high * (1 + 1e-12)
    assert bias.alibi_kernel_extremes(slope, n) == (pytest.approx(found[0]), pytest.approx(found[-1]))


@settings(deadline=None)
@given(slopes, st.sampled_from([10**4, 10**5, 2**18]))
def test_long_contexts_keep_their_exact_traces(slope: float, n: int) -> None:
    """Kernel: trace n, of its square sum_t (n-|t|) e^{-2m|t|}; logits: trace 0, of their square m^2 n^2 (n^2-1)/6."""
    kernel = bias.alibi_kernel_eigenvalues(slope, n)
    t = np.arange(1, n)
    assert kernel.sum() == pytest.approx(n, rel=1e-10)
    assert (kernel**2).sum() == pytest.approx(n + 2 * ((n - t) * np.exp(-2 * slope * t)).sum(), rel=1e-10)
    logits = bias.alibi_logit_eigenvalues(slope, n) / slope
    assert logits.sum() == pytest.approx(0, abs=1e-10 * n**2)
    assert (logits**2).sum() == pytest.approx(n**2 * (n**2 - 1.0) / 6, rel=1e-10)


def test_negative_eigenvalue_of_s4() -> None:
    for n in (32, 64, 128, 256, 512):
        assert bias.alibi_logit_extremes(1.0, n)[0] / n**2 == pytest.approx(-0.3474, abs=5e-4)
    assert bias.alibi_logit_extremes(0.25, 10**9)[0] / (0.25 * 1e18) == pytest.approx(-0.347408, abs=1e-6)


def test_symbol_and_its_limit() -> None:
    t = np.arange(-400, 401)
    for angle in (0.0, 0.3, np.pi):
        direct = (np.exp(-0.25 * np.abs(t)) * np.cos(angle * t)).sum()
        assert bias.alibi_symbol(0.25, angle) == pytest.approx(direct)
    assert bias.alibi_symbol_range(0.25) == (pytest.approx(0.1244, abs=5e-5), pytest.approx(8.042, abs=5e-4))


@settings(deadline=None)
@given(st.floats(0.05, 4))
def test_effective_rank_tends_to_its_limit(slope: float) -> None:
    limit = bias.alibi_effective_rank_limit(slope)
    off = [abs((effective_rank(bias.alibi_kernel_eigenvalues(slope, n)) or 0) / n - limit) for n in (500, 8000)]
    assert off[1] <= off[0] / 8 + 1e-12  # the error is O(1/n)
    assert off[1] < 0.01


def test_bad_input_is_refused_with_a_sentence() -> None:
    for slope in (0.0, -1.0, float("nan")):
        with pytest.raises(BadValue, match=f"slope.*{slope}"):
            bias.alibi_kernel_eigenvalues(slope, 5)
    with pytest.raises(BadValue, match="context"):
        bias.alibi_logit_eigenvalues(1.0, 0)
    with pytest.raises(BadValue, match="distance"):
        bias.alibi_logit_extremes(1.0, 1)
