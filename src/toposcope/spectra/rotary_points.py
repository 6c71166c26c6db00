"""The kernels that rotary encodings make of constant content, at every context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from toposcope.core.memory import require_memory
from toposcope.encodings.record import Encoding, Rotary
from toposcope.spectra.points import KernelPoints, Point, affordable, along, of_values
from toposcope.spectra.rotary_kernel import (
    constant_vector_bound,
    contraction_law,
    kernel_spectrum,
    rotary_rank,
    rotary_weights,
)
from toposcope.spectra.toeplitz_points import LAGS_LIMIT, toeplitz_points

DECAYING = "decaying rotary kernel, equal weights, for i >= j only"
_ROWS = 4096


def rotary_points(encoding: Encoding, rotary: Rotary, contexts: Sequence[int]) -> KernelPoints:
    """T_n(g), g(t) = sum_f a_f cos(w_f t), in closed form; with the law of S5g for plain frequencies."""
    given = encoding.parameters
    lawful = given.get("scaling") == "default" and rotary.channels == rotary.head_dim and "divisors" not in given
    lawful = lawful and given.get("frequency_dim") is None

    def points() -> Iterator[Point]:
        for n in contexts:
            frequencies_F, weights_F = rotary_weights(rotary, n)
            law = contraction_law(n, float(given["base"]), rotary.head_dim) if lawful else None
            yield of_values(
                kernel_spectrum(frequencies_F, weights_F, n),
                "closed form: Dirichlet sums",
                rank=rotary_rank(frequencies_F, n),
                law=law,
                law_bound=constant_vector_bound(frequencies_F, weights_F, n),
            )

    return along("rotary kernel, equal weights, unit diagonal", points())


def decaying_points(rotary: Rotary, contexts: Sequence[int]) -> KernelPoints:
    """The same with the decay of xPos, for i >= j only: towards the future it would grow without bound."""
    frequencies_F, weights_F = rotary_weights(rotary)
    assert rotary.decay_F is not None
    contexts, skipped = affordable(contexts, LAGS_LIMIT)
    if not contexts:
        return along(DECAYING, (), skipped=skipped)
    decay_F = np.append(rotary.decay_F, np.zeros(len(frequencies_F) - len(rotary.pairs_F2)))
    require_memory(64 * contexts[-1], f"a kernel at {contexts[-1]:,} positions", "Use a shorter context.")
    past = np.empty(contexts[-1])
    for first in range(0, len(past), _ROWS):
        at = np.arange(first, min(first + _ROWS, len(past)))[:, None]
        past[at[:, 0]] = (np.exp(-at * decay_F) * np.cos(at * frequencies_F)) @ weights_F
    points = toeplitz_points(np.concatenate([np.zeros(len(past) - 1), past]), contexts, positive=False)
    return along(DECAYING, points, skipped=skipped)
