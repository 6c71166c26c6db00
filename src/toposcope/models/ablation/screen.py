"""Which heads are worth measuring? Two backward passes estimate the damage of them all.

With a gate g on each head's output o, so that it hands on b + g (o - b) with b what stands in for it, the loss as a
function of one gate goes from L(1), the whole model, to L(0), the head removed. To first order

    L(0) - L(1)  =  - dL/dg

and one backward pass gives the slopes of all gates. At g = 1 the slope is blind to heads whose loss is flat there
and rises later (in SmolLM2, five of the eight most damaging ones), so a second pass is made with all gates at 3/4,
and the mean of the two slopes is the estimate. It is a rank, not a measurement: the heads with the highest estimates
are then measured exactly, and so is a random sample of the others, which shows how many the screen would have missed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.models.ablation.replacement import StandIn, stand_ins
from toposcope.models.ablation.runner import ESTIMATES, AblationRunner, Heads, name_of
from toposcope.models.rank import rank_correlation
from toposcope.models.score import Trial, trial_loss
from toposcope.models.sites import Site

Array = NDArray[np.float64]
TOP = 0.1
GATES = (1.0, 0.75)  # where the slopes are taken


@dataclass(frozen=True)
class Miss:
    """The share of the truly most damaging tenth that the screen did not choose, and the middle 95 % of its draws.

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

    `rho` is Spearman's correlation of estimates and measured damages, each head weighted by how many it stands for.
    """

    estimates: Mapping[str, float]
    chosen: tuple[str, ...]
    sampled: tuple[str, ...]
    rho: float | None
    miss: Miss | None


def estimates(runner: AblationRunner, heads: Sequence[Heads], on: str = "text") -> Array:
    """The estimated damage of each single head, in the mean over the sequences of a text."""
    text = runner.texts[on]  # type: ignore[index]
    if text.trials[0].kind == "drift":
        raise BadValue(
            "a drift has no slope at the whole model, where it is 0 and least: a backward pass tells nothing. "
            "Use --mode exact."
        )
    runner.require_memory_for_backward()
    places = None
    rows = []
    for number, each in enumerate(text.trials):
        known = runner.known(ESTIMATES, on, number)
        if known is None:
            if places is None:
                places = stand_ins(runner.instrument, text.trials, runner.method, seed=runner.seed)
            found = [slopes(runner, each, places[number], gate) for gate in GATES]
            known = [(sum(layer) / len(GATES)).tolist() for layer in zip(*found, strict=True)]
            runner.note(ESTIMATES, on, number, known)
        rows.append([known[layer][head] for ((layer, head),) in heads])
    return np.array(rows, dtype=np.float64).mean(axis=0)


def slopes(runner: AblationRunner, each: Trial, stand_in: StandIn, gate: float) -> list[Any]:
    """-dL/dg on one sequence, with all gates at `gate`: one tensor of H numbers per layer."""
    import torch

    instrument = runner.instrument
    gates = [torch.full((site.heads,), gate, requires_grad=True) for site in instrument.sites]

    def edit(site: Site, output_BNHV: Any) -> Any:
        instead, gate_H1 = stand_in(site.number, range(site.heads)), gates[site.number][:, None]
        if not isinstance(instead, float):
            instead = instead.to(output_BNHV.device).float()
        gated = instead + gate_H1.to(output_BNHV.device) * (output_BNHV.float() - instead)  # slopes add up in float32
        return gated.to(output_BNHV.dtype)

    instrument.edits.append(edit)
    try:
        with torch.enable_grad():
            loss = trial_loss(each, runner.model(**each.inputs))
            found = torch.autograd.grad(loss, gates)
    finally:
        instrument.edits.remove(edit)
    return [-slope.cpu() for slope in found]


def choose(heads: Sequence[Heads], estimate: Array, *, sample: int, seed: int) -> tuple[list[Heads], list[Heads]]:
    """The tenth with the highest estimates, and a random sample of the rest."""
    order = np.argsort(-estimate, kind="stable")
    top = math.ceil(TOP * len(heads))
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
    )
    return Screen(
        estimates={name_of(each): value for each, value in guess.items()},
        chosen=tuple(map(name_of, chosen)),
        sampled=tuple(map(name_of, sampled)),
        rho=rho,
        miss=miss,
    )


def missed(chosen_C: Array, sampled_M: Array, rest: int) -> Miss | None:
    """How much of the true top C was not chosen, from the damages of the C chosen heads and of M of the `rest`.

    A sampled head stands for rest / M heads. Filling the top C from the highest damage down, those of the sample
    that find a place were missed. Their number among M drawn without replacement bounds their number in the rest
    (hypergeometric, 95 %); the bounds are wide, since a small sample cannot exclude rare misses.
    """
    from scipy.stats import hypergeom

    top, count = len(chosen_C), len(sampled_M)
    if not top or not count:
        return None
    weight = rest / count
    damages = np.concatenate([chosen_C, sampled_M])
    weights = np.concatenate([np.ones(top), np.full(count, weight)])
    order = np.argsort(-damages, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    places = np.clip(top - before, 0.0, weights[order])
    from_sample = order >= top
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
