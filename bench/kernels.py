"""Positional kernels: the closed form against dense eigenvalues, diagonal means by FFT against blocked products."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from bench.row import Row, cpu, interleaved
from toposcope.spectra.bias_kernel import alibi_kernel_eigenvalues
from toposcope.spectra.rotary_kernel import kernel_spectrum, kernel_values
from toposcope.spectra.toeplitz import diagonal_means

HEAD = 128
DENSE = 4096
BLOCK = 256


def blocked_means(q_NH: np.ndarray, k_NH: np.ndarray) -> np.ndarray:
    """The peer: Q K^T in blocks of rows, each skewed so that its diagonals become columns, and summed."""
    n = len(q_NH)
    sums = np.zeros(2 * n - 1)
    reverse_HN = np.ascontiguousarray(k_NH[::-1].T)
    for first in range(0, n, BLOCK):
        rows = min(BLOCK, n - first)
        skewed = np.zeros((rows, n + rows))
        step = skewed.itemsize
        np.lib.stride_tricks.as_strided(skewed, (rows, n), ((n + rows + 1) * step, step))[...] = (
            q_NH[first : first + rows] @ reverse_HN
        )
        sums[first : first + n + rows - 1] += skewed.sum(axis=0)[:-1]
    return sums / (n - np.abs(np.arange(1 - n, n)))


def measure() -> list[Row]:
    return [*_closed_form(), *_diagonals()]


def _closed_form() -> list[Row]:
    frequencies, weights = 1e4 ** (-np.arange(0, HEAD, 2) / HEAD), np.full(HEAD // 2, 2 / HEAD)

    def ours(n: int) -> float:
        return cpu(lambda: kernel_spectrum(frequencies, weights, n), 20)

    def dense(n: int) -> np.ndarray:
        matrix = scipy.linalg.toeplitz(kernel_values(np.arange(n), frequencies, weights))
        return np.asarray(scipy.linalg.eigvalsh(matrix))[::-1]

    short, middle, long = interleaved(5, lambda: ours(1024), lambda: ours(DENSE), lambda: ours(2**20))
    reference = cpu(lambda: dense(DENSE))
    found, exact = kernel_spectrum(frequencies, weights, 512).values, dense(512)
    error = np.abs(found - exact[: len(found)]).max() / exact[0]
    slope, n = 2.0**-8, 2048
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    alibi_dense = cpu(lambda: scipy.linalg.eigvalsh(np.exp(-slope * apart)))
    alibi_ours, alibi_long = interleaved(
        3,
        lambda: cpu(lambda: alibi_kernel_eigenvalues(slope, n), 5),
        lambda: cpu(lambda: alibi_kernel_eigenvalues(slope, 2**20)),
    )
    return [
        Row(
            f"spectrum of the RoPE kernel, h = {HEAD}, n = {DENSE}",
            f"{middle * 1e3:.2f} ms; error {error:.0e} of the top at n = 512",
            f"dense {reference:.1f} s",
            f"{reference / middle:,.0f}x",
            ">= 1000x, error <= 1e-12",
            reference / middle >= 1000 and error <= 1e-12,
        ),
        Row(
            f"the same from n = 1024 to n = {2**20}",
            f"{short * 1e3:.2f} ms to {long * 1e3:.2f} ms",
            "itself at n = 1024",
            f"{long / short:.2f}x",
            "flat: <= 1.5x",
            long / short <= 1.5,
        ),
        Row(
            f"all eigenvalues of exp(ALiBi), n = {n}",
            f"{alibi_ours * 1e3:.2f} ms (n = {2**20}: {alibi_long:.2f} s)",
            f"dense {alibi_dense * 1e3:.0f} ms",
            f"{alibi_dense / alibi_ours:,.0f}x",
            ">= 100x",
            alibi_dense / alibi_ours >= 100,
        ),
    ]


def _diagonals() -> list[Row]:
    rows = []
    draw = np.random.default_rng(0).standard_normal
    for n, goal in ((2048, None), (8192, 8.0)):
        q, k = draw((n, 64)), draw((n, 64))
        ours, peer = interleaved(
            5, lambda q=q, k=k: cpu(lambda: diagonal_means(q, k)), lambda q=q, k=k: cpu(lambda: blocked_means(q, k))
        )
        error = np.abs(diagonal_means(q, k) - blocked_means(q, k)).max()
        rows.append(
            Row(
                f"means of all diagonals of Q K^T, n = {n}, h = 64",
                f"{ours * 1e3:.1f} ms; difference {error:.0e}",
                f"blocked products {peer * 1e3:.0f} ms",
                f"{peer / ours:.1f}x",
                "-" if goal is None else f">= {goal:g}x",
                None if goal is None else peer / ours >= goal,
            )
        )
    q, k = draw((131072, 64)), draw((131072, 64))
    long = cpu(lambda: diagonal_means(q, k))
    rows.append(
        Row("the same, n = 131072", f"{long:.2f} s", "too large for a dense matrix", "-", "<= 2 s", long <= 2)
    )
    return rows
