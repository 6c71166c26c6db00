"""How long a trace will take, told before it starts: from the sizes of the work and the pace of this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import scipy.linalg

from toposcope.core.progress import duration_range

# Seconds on the machine on which PROBE took PROBED. A head: what every one costs, a square of 1,024 logits read a few
# times, the singular values of 512 tokens with position and without.
HEAD, SQUARE, SINGULAR = 0.009, 0.07, 0.082
PRODUCTS = 8e10  # of the forward pass, a second
SLOWEST = 2.5  # times that machine alone, where others use this one too
EARLY = 0.2  # of the time: before, and for less, nothing is corrected
LEFT = 0.7  # of what the calls so far say, and as much above
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
    """How long so many heads take at best on sequences of these lengths, one after the other.

    `streams`: under how many encodings tokens are followed through depth; each is a run.
    """
    total = 0.0
    for n in lengths:
        head = HEAD + SQUARE * (n / 1024) ** 2 + (SINGULAR * (n / 512) ** 3 if n <= dense_limit else 0.0)
        total += heads * head + (1 + streams) * 2.0 * parameters * n / PRODUCTS
    return slower * total


def in_words(value: float) -> str:
    """A duration that is a guess: '20 s', '5 min', '2 h'."""
    return duration_range(value, value)


class TraceTime:
    """Says how long a trace takes: a range before, and another when its calls show that it is not that.

    The pace of a moment is that of a machine which does nothing else, so the range reaches far above it.
    """

    def __init__(self, expected: float) -> None:
        self._began = time.perf_counter()
        self.low, self.high = expected, SLOWEST * expected

    def look(self, answered: int, asked: int) -> str | None:
        """What is to be said once all calls have been asked for and so many are answered."""
        spent = time.perf_counter() - self._began
        if not answered or spent < EARLY * self.low:
            return None
        left = spent * (asked - answered) / answered
        if self.low <= spent + left <= self.high or left < EARLY * self.low:
            return None
        return f"now about {duration_range(LEFT * left, left / LEFT)} left"
