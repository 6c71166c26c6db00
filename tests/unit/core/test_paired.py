"""Paired tests against SciPy's and against planted effects: error rates, coverage, and power as stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from tests.sampling import sample
from toposcope.core.errors import BadValue
from toposcope.core.paired import (
    PairedOutcome,
    PairedQuestion,
    answered,
    contrast,
    detectable,
    holm,
    p_differs,
    p_equivalent,
    power,
    spread_of,
    together,
)
from toposcope.core.statistics import share_interval

HOLDS, FAILS, EQUIVALENT, UNDECIDED = PairedOutcome


def draws(seed: int, trials: int, n: int, mean: float, spread: float) -> list[list[float]]:
    return (mean + spread * np.random.default_rng(seed).standard_normal((trials, n))).tolist()


@pytest.mark.parametrize(("n", "at"), [(2, 0.0), (5, 0.4), (15, -0.3)])
def test_p_is_scipys(n: int, at: float) -> None:
    (values,) = draws(n, 1, n, 0.3, 1.0)
    mean, spread = float(np.mean(values)), spread_of(values)
    assert spread is not None
    assert p_differs(n, mean, spread, at) == pytest.approx(scipy.stats.ttest_1samp(values, at).pvalue, rel=1e-9)
    sides = [
        scipy.stats.ttest_1samp(values, at + sign * 0.8, alternative=side).pvalue
        for sign, side in ((1, "less"), (-1, "greater"))
    ]
    assert p_equivalent(n, mean, spread, 0.8, at) == pytest.approx(max(sides), rel=1e-9)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, None, 0.3]) == [pytest.approx(0.03), None, pytest.approx(0.6)]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("n", "spread", "difference", "rate"), [(3, 1.0, 2.0, 0.05), (10, 0.5, 0.4, 0.05), (8, 2, 3, 0.01)]
)
def test_power_is_the_noncentral_distributions(n: int, spread: float, difference: float, rate: float) -> None:
    edge, shift = scipy.stats.t.ppf(1 - rate / 2, n - 1), difference / spread * n**0.5
    there = scipy.stats.nct(n - 1, shift)
    assert power(n, spread, difference, rate=rate) == pytest.approx(there.sf(edge) + there.cdf(-edge), abs=1e-6)
    least = detectable(n, spread, rate=rate)
    assert least is not None
    assert power(n, spread, least, rate=rate) == pytest.approx(0.8, abs=1e-6)


def test_known_power() -> None:
    """Cohen's table: 34 pairs see half a standard deviation with 80%; without an effect only errors are seen."""
    assert power(34, 1.0, 0.5) == pytest.approx(0.81, abs=0.01)
    assert power(12, 1.0, 0.0) == pytest.approx(0.05, abs=1e-9)
    assert power(12, 1e-6, 1.0) == 1.0


@pytest.mark.parametrize("n", sample((3, 5, 8, 15), 2, of="planted effects"))
def test_planted_effects_are_found_as_often_as_stated(n: int) -> None:
    trials, effect = 300, 1.2
    found = sum(
        answered([(values, PairedQuestion())])[0].outcome == HOLDS for values in draws(n, trials, n, effect, 1.0)
    )
    low, high = share_interval(found, trials)
    assert low <= power(n, 1.0, effect) <= high


@pytest.mark.parametrize("questions", [1, 4])
def test_equal_arms_are_told_apart_in_one_of_twenty_families(questions: int) -> None:
    """Whatever the number of questions; the interval holds the truth as often as it says."""
    trials, n = 300, 6
    values = iter(draws(10 + questions, trials * questions, n, 0.0, 1.0))
    families = [answered([(next(values), PairedQuestion("apart")) for _ in range(questions)]) for _ in range(trials)]
    wrong = sum(any(answer.outcome != UNDECIDED for answer in family) for family in families)
    assert share_interval(wrong, trials)[0] <= 0.05
    covered = sum(abs(a.mean or 0.0) <= (a.half or 0.0) for family in families for a in family)
    low, high = share_interval(covered, trials * questions)
    assert low <= 0.95 <= high


def test_a_difference_as_large_as_the_bound_passes_for_equivalent_in_one_of_twenty() -> None:
    trials, n, question = 300, 8, PairedQuestion("apart", bound=1.0)
    same = [answered([(v, question)])[0].outcome == EQUIVALENT for v in draws(3, trials, n, 1.0, 0.5)]
    assert share_interval(sum(same), trials)[0] <= 0.05
    within = [answered([(v, question)])[0].outcome == EQUIVALENT for v in draws(4, trials, n, 0.0, 0.5)]
    assert sum(within) > 0.9 * trials


def test_what_a_study_says() -> None:
    values = [1.0, 1.2, 0.9, 1.1]
    for direction, outcome in (("above", HOLDS), ("below", FAILS), ("apart", HOLDS)):
        assert answered([(values, PairedQuestion(direction))])[0].outcome == outcome  # type: ignore[arg-type]
    assert answered([(values, PairedQuestion(at=2.0))])[0].outcome == FAILS
    certain_and_small = answered([(values, PairedQuestion(bound=2.0))])[0]
    assert (certain_and_small.outcome, (certain_and_small.p or 1) < 0.01) == (EQUIVALENT, True)
    noisy = answered([([1.0, -1.4, 0.7], PairedQuestion(bound=0.1))])[0]
    assert noisy.outcome == UNDECIDED
    assert noisy.detectable is not None
    assert noisy.power is not None
    assert noisy.detectable > 1
    assert noisy.power < 0.2


def test_values_that_do_not_spread() -> None:
    """Three equal numbers prove nothing by themselves; on a known grid they are equal to within rounding."""
    bare = answered([([0.0, 0.0, 0.0], PairedQuestion("apart", bound=1.0))])[0]
    assert (bare.outcome, bare.p, bare.detectable) == (UNDECIDED, None, None)
    on_a_grid = answered([([0.0, 0.0, 0.0], PairedQuestion("apart", bound=1.0, resolution=0.05))])[0]
    assert (on_a_grid.outcome, on_a_grid.spread) == (EQUIVALENT, pytest.approx(0.05 / math.sqrt(6)))
    assert answered([([2.0], PairedQuestion())])[0].outcome == UNDECIDED
    assert answered([([], PairedQuestion())])[0].mean is None


def test_contrasts_are_taken_where_all_arms_have_a_number() -> None:
    arms = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 0.5, 1: None, 2: 1.0, 3: 9.0}, "c": {0: 1.0, 2: 2.0}}
    assert contrast(arms, {"a": 1, "b": -1}) == {0: 0.5, 2: 2.0}
    assert contrast(arms, {"a": 1, "b": -1, "c": -2}) == {0: -1.5, 2: -2.0}
    assert contrast(arms, {"a": 1, "missing": -1}) == {}


@pytest.mark.parametrize(
    ("outcomes", "all_of_them", "any_of_them"),
    [
        ((HOLDS, HOLDS), HOLDS, HOLDS),
        ((HOLDS, UNDECIDED), UNDECIDED, HOLDS),
        ((HOLDS, EQUIVALENT), EQUIVALENT, HOLDS),
        ((FAILS, EQUIVALENT, HOLDS), FAILS, HOLDS),
        ((FAILS, EQUIVALENT), FAILS, FAILS),
        ((EQUIVALENT, UNDECIDED), EQUIVALENT, UNDECIDED),
        ((EQUIVALENT, EQUIVALENT), EQUIVALENT, EQUIVALENT),
        ((), UNDECIDED, UNDECIDED),
    ],
)
def test_together(outcomes: tuple[PairedOutcome, ...], all_of_them: str, any_of_them: str) -> None:
    assert (together(outcomes), together(outcomes, "any")) == (all_of_them, any_of_them)


@pytest.mark.parametrize("wrong", [{"direction": "up"}, {"bound": 0.0}, {"bound": math.nan}, {"resolution": -1.0}])
def test_senseless_questions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadValue):
        PairedQuestion(**wrong)  # type: ignore[arg-type]
