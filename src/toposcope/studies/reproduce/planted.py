"""Does a study find what is there, and nothing where nothing is? Tried on the numbers of its own runs.

Two arms are made equal: what differs between them on average is taken off, and they are swapped on a random half of
the seeds. On such pairs the study's test must find a difference in one of twenty trials at most; with a handicap of
known size put on one arm, it must find it as often as the stated power says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from toposcope.core.paired import ERROR_RATE, PairedQuestion, detectable, p_differs, power, spread_of
from toposcope.core.statistics import share_interval
from toposcope.studies.reproduce.result import StudySelfTest

SHUFFLES = 20
TRIALS = 400
LEAST_PAIRS = 5  # fewer, drawn with replacement, are often all the same


def equal_arms(
    values: Sequence[float], question: PairedQuestion, *, shuffles: int = SHUFFLES, seed: int = 0,
    rate: float = ERROR_RATE,
) -> int:  # fmt: skip
    """In how many shuffles of two arms made equal a difference is found, by a test at `rate`."""
    about = np.asarray(values) - np.mean(values)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(shuffles, len(values)))
    return _found((signs * about).tolist(), question, 0.0, rate)


def handicapped(
    values: Sequence[float], question: PairedQuestion, handicap: float, *, trials: int = TRIALS, seed: int = 0,
    rate: float = ERROR_RATE,
) -> int:  # fmt: skip
    """In how many trials a handicap of this size, put on one of two equal arms, is found.

    The equal arms of a trial are as many pairs, drawn from the study's own about their mean, each to either side.
    """
    n, chance = len(values), np.random.default_rng(seed)
    about = (np.asarray(values) - np.mean(values)) * math.sqrt(
        n / max(n - 1, 1)
    )  # which have the spread of the pairs
    drawn = chance.choice([-1.0, 1.0], size=(trials, n)) * chance.choice(about, size=(trials, n))
    return _found(drawn.tolist(), question, handicap, rate)


def self_test(
    name: str, values: Sequence[float], question: PairedQuestion, *, seed: int = 0, rate: float = ERROR_RATE
) -> StudySelfTest:
    """Both, for one question tested at `rate`: the handicap is the difference that is said to be seen with 80 %."""
    n, spread = len(values), spread_of(values, question.resolution)
    size = None if spread is None else detectable(n, spread, rate=rate)
    if n < LEAST_PAIRS or spread is None or size is None:
        return StudySelfTest(name, n, SHUFFLES, None, None, None, None, 0, None, None, None)
    found = handicapped(values, question, size, seed=seed, rate=rate)
    low, high = share_interval(found, TRIALS)
    return StudySelfTest(
        question=name,
        pairs=n,
        shuffles=SHUFFLES,
        found_in_equal_arms=equal_arms(values, question, seed=seed, rate=rate),
        false_rate=equal_arms(values, question, shuffles=TRIALS, seed=seed + 1, rate=rate) / TRIALS,
        handicap=size,
        power=power(n, spread, size, rate=rate),
        trials=TRIALS,
        found=found / TRIALS,
        found_low=low,
        found_high=high,
    )


def _found(draws: Iterable[Sequence[float]], question: PairedQuestion, handicap: float, rate: float) -> int:
    found = 0
    for each in draws:
        mean, spread = math.fsum(each) / len(each) + handicap, spread_of(each, question.resolution)
        p = None if spread is None else p_differs(len(each), mean, spread)
        found += p is not None and p <= rate
    return found
