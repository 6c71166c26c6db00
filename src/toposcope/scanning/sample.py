"""Some layers for all: which to draw, and what their heads' verdicts say about the whole model.

Heads of a layer resemble each other, so layers are what is drawn, and what counts is how many there are of them, not
of heads. The stack is cut into strata of neighbouring layers, and two are drawn from each (three from one if the
number is odd), without replacement. For a verdict with c_l heads in layer l,

    estimate = sum_s L_s mean_s(c),      variance = sum_s L_s^2 (1 - n_s/L_s) var_s(c) / n_s

with L_s layers in stratum s and n_s of them drawn. The estimate is unbiased. var_s is taken over the layers drawn
from s and the nearest one drawn on either side: with two layers alone it is 0 too often where a verdict fills some
layers and no others; with the neighbours it is, if anything, too large. The interval is Student's, with n - S degrees
of freedom, and never outside what is certain: at least the heads seen, at most those seen and all that were not
looked at. Where all drawn layers say the same the variance says nothing, and the hypergeometric distribution does:
the largest number of layers that may differ such that drawing none of them would not be surprising.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from toposcope.core.errors import BadValue

LEVEL = 0.95
_SAMPLE = re.compile(r"sample:(\d+)")
METHOD = "stratified sample of layers, Student's t with finite population correction"


@dataclass(frozen=True)
class LayerSample:
    """Strata of neighbouring layers, and those drawn from each."""

    strata: tuple[tuple[int, ...], ...]
    drawn: tuple[tuple[int, ...], ...]

    @property
    def layers(self) -> list[int]:
        """All that were drawn, in their order."""
        return sorted(number for part in self.drawn for number in part)


@dataclass(frozen=True)
class CountEstimate:
    """How many heads of the whole model have a verdict: an estimate, its interval, and what is certain."""

    seen: int
    estimate: float
    low: float
    high: float
    at_least: int
    at_most: int


@dataclass(frozen=True)
class SampleEstimate:
    """Heads of the whole model by verdict, from layers that were drawn: an estimate, not a verdict."""

    method: str
    level: float
    heads: int
    layers: int
    drawn: tuple[int, ...]
    strata: tuple[tuple[int, int], ...]
    counts: Mapping[str, CountEstimate]
    unseen_verdict_in_at_most_layers: int


def sample_size(text: str | None) -> int | None:
    """The number in 'sample:12'; None where something else was written."""
    if text is None or not text.strip().lower().startswith("sample"):
        return None
    found = _SAMPLE.fullmatch(text.strip().lower())
    if found is None or int(found[1]) < 1:
        raise BadValue(f"'{text}' is not a sample of layers. Write sample:12 for twelve of them.")
    return int(found[1])


def draw(layers: Sequence[int], count: int, seed: int) -> LayerSample:
    """So many of these layers, spread over the depth; all of them where there are no more."""
    count = min(count, len(layers))
    parts = [part.tolist() for part in np.array_split(np.array(layers, dtype=int), max(1, count // 2))]
    sizes = [min(2, count)] * len(parts)
    if count > 2 and count % 2:
        sizes[0] += 1  # array_split makes the first ones the largest
    random = np.random.default_rng(seed)
    drawn = [
        sorted(random.choice(part, size, replace=False).tolist()) for part, size in zip(parts, sizes, strict=True)
    ]
    return LayerSample(tuple(map(tuple, parts)), tuple(map(tuple, drawn)))


def estimates(sample: LayerSample, heads: Mapping[int, int], verdicts: Mapping[int, Sequence[str]]) -> SampleEstimate:
    """The verdict counts of the whole model, from those of the drawn layers.

    `heads` is the number of heads of every layer of the strata, `verdicts` those of every head of the drawn ones.
    """
    words = dict.fromkeys(word for number in sample.layers for word in verdicts[number])
    total = sum(heads[number] for part in sample.strata for number in part)
    counts = {
        word: _count(sample, {number: list(verdicts[number]).count(word) for number in sample.layers}, heads)
        for word in words
    }
    return SampleEstimate(
        method=METHOD,
        level=LEVEL,
        heads=total,
        layers=sum(map(len, sample.strata)),
        drawn=tuple(sample.layers),
        strata=tuple((part[0], part[-1]) for part in sample.strata),
        counts=counts,
        unseen_verdict_in_at_most_layers=_may_differ(sample),
    )


def _count(sample: LayerSample, here: Mapping[int, int], heads: Mapping[int, int]) -> CountEstimate:
    seen = sum(here.values())
    unread = sum(heads[number] for part in sample.strata for number in part if number not in here)
    surely, possibly = seen, seen + unread
    value = variance = 0.0
    for place, (part, drawn) in enumerate(zip(sample.strata, sample.drawn, strict=True)):
        value += len(part) * float(np.mean([here[number] for number in drawn]))
        near = [here[number] for number in _near(sample, place)]
        if len(near) > 1:
            share = 1 - len(drawn) / len(part)
            variance += len(part) ** 2 * share * float(np.var(near, ddof=1)) / len(drawn)
    freedom = sum(len(drawn) - 1 for drawn in sample.drawn)
    low, high = float(surely), float(possibly)
    if len(set(here.values())) == 1:
        differ, most = _may_differ(sample), max(heads.values())
        same = next(iter(here.values()))
        low, high = value - differ * same, value + differ * (most - same)
    elif freedom > 0:
        reach = _student(freedom) * variance**0.5
        low, high = value - reach, value + reach
    inside = min(max(value, surely), possibly)
    return CountEstimate(seen, inside, max(low, surely), min(high, possibly), surely, possibly)


def _near(sample: LayerSample, place: int) -> list[int]:
    """The layers drawn from a stratum, with the last of the one before and the first of the one after."""
    before = sample.drawn[place - 1][-1:] if place else ()
    after = sample.drawn[place + 1][:1] if place + 1 < len(sample.drawn) else ()
    return [*before, *sample.drawn[place], *after]


def _may_differ(sample: LayerSample) -> int:
    return most_unseen(sum(map(len, sample.strata)), len(sample.layers))


@lru_cache
def most_unseen(total: int, drawn: int) -> int:
    """The most of `total` layers that may be of another kind, although none of those drawn is, without a surprise."""
    ways = math.comb(total, drawn)
    unseen = (math.comb(total - others, drawn) / ways for others in range(total - drawn + 1))  # it falls
    return sum(chance >= 1 - LEVEL for chance in unseen) - 1


@lru_cache
def _student(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + LEVEL / 2))
