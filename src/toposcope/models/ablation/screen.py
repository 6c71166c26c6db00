"""Which heads are worth measuring? Those whose removal is expected to cost most, and a few others as a check.

`expected` estimates the damage of every head to second order. It is a rank, not a measurement: the fifth with the
highest estimates is then measured exactly, and so is a random sample of the others, if one is asked for. How much of
the true top tenth that finds was measured on SmolLM2, on texts that played no part in choosing any of it: `RECALL`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.models.ablation.expected import expected_damages
from toposcope.models.ablation.replacement import stand_ins
from toposcope.models.ablation.runner import ESTIMATES, AblationRunner, Heads, name_of
from toposcope.models.rank import rank_correlation
from toposcope.models.score import Trial

Array = NDArray[np.float64]
TOP = 0.1  # the share of heads that is looked for
CHOSEN = 0.2  # and that is measured to find them
DRAWS, LEAST_DRAWS = 16, 2  # sets of labels drawn over all sequences, and for each


@dataclass(frozen=True)
class ScreenRecall:
    """How many of the truly most damaging tenth the screen chose, where every head was measured as well.

    `found` of `looked_for` heads, summed over `texts`; `least` is the lower end of the one-sided 95% interval of
    that share (Clopper and Pearson; heads count as independent). What the screen does was settled on `settled_on`.
    `lost` is the share of the tenth's damage that lies in the heads it missed.
    """

    model: str
    texts: tuple[str, ...]
    tokens: int
    sequences: int
    settled_on: tuple[str, ...]
    looked_for: int
    found: int
    least: float
    lost: float
    command: str


# `command` measures these numbers again.
RECALL = ScreenRecall(
    model="SmolLM2",
    texts=("technical", "code"),
    tokens=128,
    sequences=4,
    settled_on=("wiki", "c4"),
    looked_for=54,
    found=52,
    least=0.888,
    lost=0.025,
    command="python -m bench.screening",
)


@dataclass(frozen=True)
class Miss:
    """The share of the truly most damaging tenth that the screen did not choose, and the middle 95% of its draws.

    `found` of the `sampled` heads belong to that tenth although the screen had put them aside; each stands for
    `weight` heads.
    """

    rate: float
    low: float
    high: float
    found: int
    sampled: int
    weight: float


@dataclass(frozen=True)
class Screen:
    """The estimate of every head, which of them were chosen for a measurement, and how good the estimates were.

    `rho` is Spearman's correlation of estimates and measured damages, each head weighted by how many it stands for;
    it and `miss` are None without a sample. `recall` is what the screen has found elsewhere.
    """

    estimates: Mapping[str, float]
    chosen: tuple[str, ...]
    sampled: tuple[str, ...]
    rho: float | None
    miss: Miss | None
    recall: ScreenRecall = RECALL


def estimates(
    runner: AblationRunner, heads: Sequence[Heads], on: str = "text", tick: Callable[[], None] = lambda: None
) -> Array:
    """The expected damage of each single head, in the mean over the sequences of a text."""
    text = runner.texts[on]  # type: ignore[index]
    if text.trials[0].kind == "drift":
        raise BadValue(
            "a drift has no slope at the whole model, where it is 0 and least: a backward pass tells nothing. "
            "Use --mode exact."
        )
    draws = _draws(runner, on)
    runner.require_memory_for_backward(1 + draws)
    places = None
    rows = []
    for number, each in enumerate(text.trials):
        known = runner.known(ESTIMATES, on, number)
        if known is None:
            if places is None:
                places = stand_ins(runner.instrument, text.trials, runner.method, seed=runner.seed)
            seed = (runner.seed, number)
            known = expected_damages(runner, each, places[number], draws=draws, seed=seed)
            runner.note(ESTIMATES, on, number, known)
            runner.work += _work_of(runner, each, draws)
            tick()
        rows.append([known[layer][head] for ((layer, head),) in heads])
    return np.array(rows, dtype=np.float64).mean(axis=0)


def estimates_work(runner: AblationRunner, on: str = "text") -> list[float]:
    """The work of the estimates that are still to be made, sequence by sequence."""
    text, draws = runner.texts[on], _draws(runner, on)  # type: ignore[index]
    left = (each for number, each in enumerate(text.trials) if runner.known(ESTIMATES, on, number) is None)
    return [_work_of(runner, each, draws) for each in left]


def _draws(runner: AblationRunner, on: str) -> int:
    return max(LEAST_DRAWS, math.ceil(DRAWS / len(runner.texts[on].trials)))  # type: ignore[index]


def _work_of(runner: AblationRunner, each: Trial, draws: int) -> float:
    """In tokens run through the model: one pass, the backward ones (twice as long), and each head's own block."""
    return each.tokens * (1.0 + 2.0 * (1 + draws) + max(runner.sizes))


def choose(heads: Sequence[Heads], estimate: Array, *, sample: int, seed: int) -> tuple[list[Heads], list[Heads]]:
    """The fifth with the highest estimates, and a random sample of the rest."""
    order = np.argsort(-estimate, kind="stable")
    top = math.ceil(CHOSEN * len(heads))
    rest = order[top:]
    drawn = np.random.default_rng(seed).choice(rest, min(sample, len(rest)), replace=False)
    return [heads[i] for i in order[:top]], [heads[i] for i in np.sort(drawn)]


def judged(
    runner: AblationRunner, heads: Sequence[Heads], estimate: Array, chosen: list[Heads], sampled: list[Heads]
) -> Screen:
    """The screen beside what was measured of it."""
    weight = (len(heads) - len(chosen)) / len(sampled) if sampled else 0.0
    guess = dict(zip(heads, estimate.tolist(), strict=True))
    copies = [(each, 1) for each in chosen] + [(each, round(weight)) for each in sampled]
    pairs = [(guess[each], runner.damage(each)) for each, times in copies for _ in range(times)]
    rho = (
        rank_correlation("estimate", "damage", [a for a, _ in pairs], [b for _, b in pairs]).rho if sampled else None
    )
    miss = missed(
        np.array([runner.damage(each) for each in chosen]),
        np.array([runner.damage(each) for each in sampled]),
        len(heads) - len(chosen),
        math.ceil(TOP * len(heads)),
    )
    return Screen(
        estimates={name_of(each): value for each, value in guess.items()},
        chosen=tuple(map(name_of, chosen)),
        sampled=tuple(map(name_of, sampled)),
        rho=rho,
        miss=miss,
    )


def missed(chosen_C: Array, sampled_M: Array, rest: int, top: int) -> Miss | None:
    """How much of the true `top` heads was not chosen, from the damages of the chosen ones and of M of the `rest`.

    A sampled head stands for rest / M heads. Filling the top from the highest damage down, those of the sample that
    find a place were missed. Their number among M drawn without replacement bounds their number in the rest
    (hypergeometric, 95%); the bounds are wide, since a small sample cannot exclude rare misses.
    """
    from scipy.stats import hypergeom

    count = len(sampled_M)
    if not len(chosen_C) or not count:
        return None
    weight = rest / count
    damages = np.concatenate([chosen_C, sampled_M])
    weights = np.concatenate([np.ones(len(chosen_C)), np.full(count, weight)])
    order = np.argsort(-damages, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    places = np.clip(top - before, 0.0, weights[order])
    from_sample = order >= len(chosen_C)
    found = int((places[from_sample] > 0).sum())
    possible = np.arange(rest + 1)
    low = possible[hypergeom.sf(found - 1, rest, possible, count) > 0.025][0]
    high = possible[hypergeom.cdf(found, rest, possible, count) > 0.025][-1]
    return Miss(
        rate=float(places[from_sample].sum() / top),
        low=min(1.0, float(low) / top),
        high=min(1.0, float(high) / top),
        found=found,
        sampled=count,
        weight=weight,
    )
