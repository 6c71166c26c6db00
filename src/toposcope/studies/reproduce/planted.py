"""Does a study find what is there, and nothing where nothing is? Tried on the numbers of its own runs.

Two arms are made equal by swapping them on a random half of the seeds: whatever differed between them then points to
either side as often. On such pairs the study's test must find a difference in one of twenty trials at most; and with
a handicap of known size put on one arm, it must find it as often as the stated power says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from toposcope.core.paired import PairedOutcome, PairedQuestion, answered, detectable, power, spread_of
from toposcope.core.statistics import share_interval
from toposcope.studies.reproduce.result import StudySelfTest

SHUFFLES = 20
TRIALS = 400


def equal_arms(values: Sequence[float], question: PairedQuestion, *, shuffles: int = SHUFFLES, seed: int = 0) -> int:
    """In how many shuffles of two equal arms a difference is found."""
    return _found(_swapped(values, question, shuffles, seed), question, 0.0)


def handicapped(
    values: Sequence[float], question: PairedQuestion, handicap: float, *, trials: int = TRIALS, seed: int = 0
) -> int:
    """In how many trials a handicap of this size, put on one of two equal arms, is found.

    The equal arms of a trial are as many pairs, drawn from the study's own about their mean, each to either side.
    """
    n, chance = len(values), np.random.default_rng(seed)
    about = (np.asarray(values) - np.mean(values)) * np.sqrt(n / max(n - 1, 1))  # which have the spread of the pairs
    drawn = chance.choice([-1.0, 1.0], size=(trials, n)) * chance.choice(about, size=(trials, n))
    return _found(drawn.tolist(), question, handicap)


def self_test(name: str, values: Sequence[float], question: PairedQuestion, *, seed: int = 0) -> StudySelfTest:
    """Both, for one question: the handicap is the one that is said to be seen with 80 %."""
    spread = spread_of(values, question.resolution)
    size = None if spread is None else detectable(len(values), spread)
    if spread is None or size is None:
        return StudySelfTest(name, len(values), SHUFFLES, None, None, None, 0, None, None, None)
    found = handicapped(values, question, size, seed=seed)
    low, high = share_interval(found, TRIALS)
    stated = power(len(values), spread, size)
    return StudySelfTest(
        question=name,
        pairs=len(values),
        shuffles=SHUFFLES,
        found_in_equal_arms=equal_arms(values, question, seed=seed),
        handicap=size,
        power=stated,
        trials=TRIALS,
        found=found / TRIALS,
        found_low=low,
        found_high=high,
    )


def _swapped(values: Sequence[float], question: PairedQuestion, shuffles: int, seed: int) -> list[list[float]]:
    """The differences with random signs: the arms swapped on some of the seeds."""
    off = np.asarray(values) - question.at
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(shuffles, len(values)))
    return (signs * off).tolist()


def _found(draws: Sequence[Sequence[float]], question: PairedQuestion, handicap: float) -> int:
    plain = replace(question, direction="apart", at=0.0, bound=None)
    found = 0
    for each in draws:
        (answer,) = answered([([value + handicap for value in each], plain)])
        found += answer.outcome == PairedOutcome.HOLDS
    return found
