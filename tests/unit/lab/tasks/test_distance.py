"""The distance task: what leaks, what collides, and the best anyone can do."""

from __future__ import annotations

import itertools
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch

from tests.unit.lab.tasks.reading import sentences
from toposcope.lab.tasks.distance import CEILING_SAMPLES, Distance, posterior, simple_rules


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("profile", "prior", "floor"), [("laptop-s", 5.6, 24.4), ("laptop-m", 3.6, 15.6), ("paper", 1.4, 5.4)]
)
def test_floors_of_the_profiles(profile: str, prior: float, floor: float) -> None:
    task = Distance.sized(profile)
    assert round(100 * task.prior, 1) == prior
    assert round(100 * task.floor, 1) == floor
    assert Distance.sized(profile, fixed_length=True).floor == task.prior


@pytest.mark.parametrize(("side", "between"), [(1, 1), (1, 4), (3, 2), (4, 7)])
def test_the_length_only_rate_is_that_of_the_best_table(side: int, between: int) -> None:
    chances: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for left, m, right in itertools.product(range(1, side + 1), range(1, between + 1), range(1, side + 1)):
        chances[left + m + right][m] += 1
    best = Fraction(sum(max(by_m.values()) for by_m in chances.values()), side**2 * between)
    task = Distance(side=side, between=between, vocabulary=9, length=40)
    assert task.without_position == pytest.approx(float(best), abs=1e-15)


def test_with_fixed_length_the_multiset_is_independent_of_the_answer() -> None:
    chances = {}
    for fixed in (False, True):
        task = Distance(side=2, between=3, vocabulary=5, length=9, fixed_length=fixed)
        batch = task.generate(40_000, seeded())
        table = np.zeros((task.classes, task.length))
        np.add.at(table, (batch.labels.numpy(), (batch.ids_BN == 3).sum(1).numpy()), 1)
        chances[fixed] = scipy.stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue
    assert chances[True] > 1e-3
    assert chances[False] < 1e-100


def exact_bayes_rate(task: Distance) -> Fraction:
    """sum over sentences of max_m P(m, sentence), by writing down every sentence there is."""
    fillers = range(1, task.vocabulary)
    joint: dict[tuple[int, ...], dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    sides = range(1, task.side + 1)
    for left, m, right in itertools.product(sides, range(1, task.between + 1), sides):
        length = task.length if task.fixed_length else left + m + right + 2
        chance = Fraction(1, task.side**2 * task.between * len(fillers) ** (length - 2))
        for filled in itertools.product(fillers, repeat=length - 2):
            sentence = (*filled[:left], 1, *filled[left : left + m], 2, *filled[left + m :])
            joint[sentence][m] += chance
    assert sum(sum(by_m.values()) for by_m in joint.values()) == 1
    return sum((max(by_m.values()) for by_m in joint.values()), Fraction(0))


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(("side", "between", "vocabulary"), [(2, 2, 4), (1, 3, 4), (2, 1, 5), (2, 3, 3 + 1)])
def test_the_ceiling_is_the_exact_bayes_rate(side: int, between: int, vocabulary: int, fixed: bool) -> None:
    task = Distance(
        side=side,
        between=between,
        vocabulary=vocabulary,
        length=2 * side + between + 2,
        collide=True,
        fixed_length=fixed,
    )
    exact, found = float(exact_bayes_rate(task)), task.ceiling
    assert found.samples == CEILING_SAMPLES
    assert found.value == pytest.approx(exact, abs=4 * found.error + 1e-12)


@pytest.mark.parametrize(
    ("profile", "ceiling", "first_last", "first_next"),
    [("laptop-s", 98.4, 97.3, 94.6), ("laptop-m", 97.2, 96.0, 91.8), ("paper", 96.4, 95.6, 92.0)],
)
def test_rates_of_the_profiles_with_collisions(
    profile: str, ceiling: float, first_last: float, first_next: float
) -> None:
    task = Distance.sized(profile, collide=True)
    rules = simple_rules(task, samples=50_000, seed=1)
    for rate, percent in zip((task.ceiling, *rules.values()), (ceiling, first_last, first_next), strict=True):
        assert 100 * rate.value == pytest.approx(percent, abs=0.05 + 400 * rate.error)
        assert 100 * rate.error < 0.15


@pytest.mark.parametrize("profile", ["laptop-s", "laptop-m", "paper"])
def test_simple_rules_have_the_rates_of_their_formulas(profile: str) -> None:
    """Right if no A stands before A and no B after B, or between: powers of the chance of another filler."""
    task = Distance.sized(profile, collide=True)
    other = 1 - 1 / (task.vocabulary - 1)
    clear_side = np.mean(other ** np.arange(1, task.side + 1))
    clear_between = np.mean(other ** np.arange(1, task.between + 1))
    rules = simple_rules(task, samples=50_000, seed=2)
    last, following = rules["first A, last B"], rules["first A, next B"]
    assert last.value == pytest.approx(clear_side**2, abs=4 * last.error)
    luck = (1 - clear_side) * (1 - other)  # a wrong A and, at the right distance from it, a wrong B
    product = clear_side * clear_between
    assert product - 4 * following.error < following.value < product + luck + 4 * following.error


def test_simple_rules_are_what_they_say() -> None:
    task = Distance(side=3, between=4, vocabulary=6, length=14, collide=True)
    batch = task.generate(500, seeded(4))
    right = {"first A, last B": 0, "first A, next B": 0}
    for ids, label in zip(sentences(batch), batch.labels.tolist(), strict=True):
        a = ids.index(1)
        places = [place for place, token in enumerate(ids) if token == 2]
        right["first A, last B"] += places[-1] - a == label + 2
        right["first A, next B"] += next(place for place in places if place > a) - a == label + 2
    found = simple_rules(task, samples=500, seed=4)
    assert {name: round(500 * rate.value) for name, rate in found.items()} == right


def test_the_posterior_is_calibrated() -> None:
    """Guessing its largest entry is right as often as the entry says, and the truth always has some chance."""
    task = Distance.sized("laptop-m", collide=True)
    batch = task.generate(40_000, seeded(5))
    chance_BM = posterior(task, batch.ids_BN, batch.lengths_B)
    assert chance_BM.sum(1).numpy() == pytest.approx(1, abs=1e-6)
    assert chance_BM.gather(1, batch.labels[:, None]).min() > 0
    right = (chance_BM.argmax(1) == batch.labels).double()
    error = float(right.std()) / np.sqrt(len(right))
    assert float(right.mean()) == pytest.approx(task.ceiling.value, abs=4 * (error + task.ceiling.error))


def test_collisions_hold_extra_triggers_and_the_plain_task_none() -> None:
    plain, colliding = Distance.sized("paper"), Distance.sized("paper", collide=True)
    assert colliding.vocabulary == 574
    assert Distance.sized("laptop-s", collide=True).vocabulary == 224
    assert Distance.sized("laptop-s", collide=True, vocabulary=50).vocabulary == 50
    for task, expected in ((plain, 0.0), (colliding, 0.193)):
        ids_BN = task.generate(20_000, seeded()).ids_BN
        extra = (((ids_BN == 1) | (ids_BN == 2)).sum(1) > 2).double().mean()
        assert float(extra) == pytest.approx(expected, abs=4 * 0.4 / np.sqrt(20_000) * (expected > 0))
    assert plain.ceiling.value == 1
    assert plain.ceiling.error == 0


def test_longer_sides_leave_the_distances() -> None:
    task = Distance.sized("laptop-s")
    longer = task.longer(3)
    assert (longer.side, longer.between, longer.length) == (5 + 32, 18, 96)
    first_a = (longer.generate(2000, seeded()).ids_BN == 1).int().argmax(1)
    assert first_a.max() > task.length
    assert longer.floor < task.floor
