"""Spectra of rotary logits without the n x n matrix: factors, running sums and softmax bands against dense."""

from __future__ import annotations

import tracemalloc

import numpy as np
import scipy.linalg

from bench.row import Row, cpu, interleaved
from toposcope.encodings import rope
from toposcope.spectra.operators import TopValues, causal_product, softmax_operator, top_singular_values
from toposcope.spectra.singular import product_singular_values

HEAD = 64
SHORT = 2048
LONG_EXACT, LONG_CAUSAL = 1_048_576, 131_072
TOP = 4
SHARED = 0.5  # part of the content all tokens share, as trained heads have; pure noise is timed beside it


def content(length: int, shared: float) -> tuple[np.ndarray, np.ndarray]:
    """Rotated queries and keys: noise plus a component all tokens share; the scale of attention is in q."""
    random = np.random.default_rng(0)
    mean = random.standard_normal(HEAD)
    rotary = rope(HEAD).rotary
    assert rotary is not None
    q, k = (random.standard_normal((length, HEAD)) + shared * mean for _ in range(2))
    at = np.arange(length)
    return rotary.rotate(q, at, side="query") / np.sqrt(HEAD), rotary.rotate(k, at, side="key")


def measure() -> list[Row]:
    q, k = content(SHORT, SHARED)
    dense_values = scipy.linalg.svdvals(q @ k.T)
    masked_values = scipy.linalg.svdvals(np.tril(q @ k.T))
    exact, dense = interleaved(
        3,
        lambda: cpu(lambda: product_singular_values(q, k), 20),
        lambda: cpu(lambda: scipy.linalg.svdvals(q @ k.T, check_finite=False)),
    )
    error = np.abs(product_singular_values(q, k) - dense_values[:HEAD]).max() / dense_values[0]
    long_pair = content(LONG_EXACT, SHARED)
    long_seconds = cpu(lambda: product_singular_values(*long_pair))
    hard = q * np.geomspace(1, 1e-6, HEAD)  # ill conditioned: the Householder route
    householder = cpu(lambda: product_singular_values(hard, k), 5)
    rows = [
        Row(
            f"all singular values of rotary logits, n = {SHORT}, h = {HEAD}",
            f"{exact * 1e3:.2f} ms, error {error:.0e} of the top (ill conditioned {householder * 1e3:.1f} ms); "
            f"n = {LONG_EXACT}: {long_seconds:.1f} s",
            f"dense svdvals {dense:.1f} s",
            f"{dense / exact:.0f}x dense",
            ">= 1000x dense, exact",
            bool(dense / exact >= 1000 and error <= 1e-12),
        )
    ]
    rows += [_causal(q, k, dense, masked_values), _long_causal(), _softmax(q, k)]
    return rows


def _causal(q: np.ndarray, k: np.ndarray, dense: float, exact: np.ndarray) -> Row:
    def top(block_q: np.ndarray, block_k: np.ndarray) -> TopValues:
        return top_singular_values(causal_product(block_q, block_k), TOP)

    ours = interleaved(3, lambda: cpu(lambda: top(q, k)))[0]
    found = top(q, k)
    noise_q, noise_k = content(SHORT, 0.0)
    noise = cpu(lambda: top(noise_q, noise_k))
    error = np.abs(found.values - exact[:TOP]).max() / exact[0]
    return Row(
        f"top {TOP} singular values of causal rotary logits, n = {SHORT}",
        f"{ours * 1e3:.0f} ms, {found.passes} passes, error {error:.0e}, residual "
        f"{found.residuals.max() / found.values[0]:.0e} of the top (content of pure noise: {noise * 1e3:.0f} ms)",
        f"dense svdvals {dense:.1f} s",
        f"{dense / ours:.0f}x dense (noise {dense / noise:.0f}x)",
        ">= 10x dense",
        bool(dense / ours >= 10 and dense / noise >= 10 and found.converged),
    )


def _long_causal() -> Row:
    q, k = content(LONG_CAUSAL, SHARED)
    found: list[TopValues] = []
    seconds = cpu(lambda: found.append(top_singular_values(causal_product(q, k), TOP)))
    return Row(
        f"the same at n = {LONG_CAUSAL}",
        f"{seconds:.1f} s, {found[0].passes} passes, residual "
        f"{found[0].residuals.max() / found[0].values[0]:.0e} of the top",
        f"dense would be {LONG_CAUSAL**2 * 8 / 2**30:.0f} GiB",
        "-",
        "within a minute, residual printed",
        bool(seconds <= 60 and found[0].converged),
    )


def _softmax(q: np.ndarray, k: np.ndarray) -> Row:
    def ours(causal: bool) -> TopValues:
        return top_singular_values(softmax_operator(q, k, causal=causal), TOP, block=8 * TOP, tolerance=1e-6)

    def theirs(causal: bool) -> np.ndarray:
        weights = np.where(np.tri(SHORT) > 0, q @ k.T, -np.inf) if causal else q @ k.T
        weights = np.exp(weights - weights.max(axis=1, keepdims=True))
        return np.asarray(scipy.linalg.svdvals(weights / weights.sum(axis=1, keepdims=True), check_finite=False))

    seconds, dense, both_ways, dense_both_ways = interleaved(
        3,
        lambda: cpu(lambda: ours(True)),
        lambda: cpu(lambda: theirs(True)),
        lambda: cpu(lambda: ours(False)),
        lambda: cpu(lambda: theirs(False)),
    )
    found, exact = ours(True), theirs(True)
    tracemalloc.start()
    softmax_operator(q, k, causal=True).with_gram(np.ones((SHORT, TOP)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    error = np.abs(found.values - exact[:TOP]).max() / exact[0]
    return Row(
        f"top {TOP} singular values of causal attention after softmax, n = {SHORT}",
        f"{seconds:.2f} s (unmasked {both_ways:.2f} s), {found.rough_passes} passes in single precision and "
        f"{found.passes} in double, error {error:.0e}, residual "
        f"{found.residuals.max() / found.values[0]:.0e} of the top; {peak / 2**20:.0f} MiB held",
        f"dense {dense:.1f} s, {SHORT**2 * 8 / 2**20:.0f} MiB a matrix",
        f"{dense / seconds:.1f}x dense (unmasked {dense_both_ways / both_ways:.1f}x)",
        ">= 4x dense, no n x n memory",
        bool(dense / seconds >= 4 and dense_both_ways / both_ways >= 4 and peak < SHORT**2 * 8 / 2),
    )
