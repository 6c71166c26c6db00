"""How long a trace will take, told before it starts: from the sizes of the work and the pace of this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import scipy.linalg

# Seconds on the machine on which PROBE took PROBED. A head: what every one costs, a square of 1,024 logits read a few
# times, the singular values of 512 tokens with position and without.
HEAD, SQUARE, SINGULAR = 0.009, 0.07, 0.082
PRODUCTS = 8e10  # of the forward pass, a second
PROBE, PROBED = 128, 0.00087  # the size of a matrix, and its singular values


def pace(tries: int = 3) -> float:
    """How much slower than that machine this one is."""
    matrix = np.random.default_rng(0).standard_normal((PROBE, PROBE))
    taken = []
    for _ in range(tries):
        began = time.perf_counter()
        scipy.linalg.svdvals(matrix)
        taken.append(time.perf_counter() - began)
    return min(taken) / PROBED


def seconds(
    heads: int, lengths: Sequence[int], *, dense_limit: int, parameters: int, slower: float, streams: int = 0
) -> float:
    """About how long so many heads take on sequences of these lengths, one after the other.

    `streams`: under how many encodings tokens are followed through depth; each is a run.
    """
    total = 0.0
    for n in lengths:
        head = HEAD + SQUARE * (n / 1024) ** 2 + (SINGULAR * (n / 512) ** 3 if n <= dense_limit else 0.0)
        total += heads * head + (1 + streams) * 2.0 * parameters * n / PRODUCTS
    return slower * total


def in_words(value: float) -> str:
    """A duration that is a guess: '20 s', '5 min', '2 h'."""
    for unit, size in (("h", 3600), ("min", 60)):
        if value >= 1.5 * size:
            return f"{value / size:.0f} {unit}"
    return f"{value:.0f} s" if value < 10 else f"{round(value, -1):.0f} s"
