"""What a model loses with each of its heads: damages, each layer's deposit, pairs that stand in for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.models.ablation.runner import TEXTS, Heads, Meter, name_of
from toposcope.models.ablation.screen import Screen
from toposcope.models.deposit import Deposit, DepositBootstrap, bootstrap, deposit
from toposcope.models.score import UNITS, kind_of

Array = NDArray[np.float64]
TOP_PAIRS = 10  # heads whose pairs `all-top` tries


@dataclass(frozen=True)
class TextScores:
    """The whole model on one text: a score for each sequence, and what is left with positions off (None: unknown)."""

    name: str
    cut: str
    base: tuple[float, ...]
    floor: tuple[float, ...] | None


@dataclass(frozen=True)
class HeadDamage:
    """One head removed: its score on each sequence of each text, how much worse that is, and the standard error."""

    layer: int
    head: int
    scores: dict[str, tuple[float, ...]]
    damage: dict[str, float]
    error: dict[str, float | None]

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True)
class LayerDeposit:
    """Does a layer hang on one of its heads? `spread` holds the bootstrap's intervals, from two sequences on."""

    layer: int
    deposit: Deposit
    spread: DepositBootstrap | None


@dataclass(frozen=True)
class PairDamage:
    """Two heads removed together. `redundancy` = damage(pair) - damage(first) - damage(second).

    Above 0 they stand in for each other; below 0 they work on the same thing one after the other.
    """

    first: str
    second: str
    damage: float
    alone: tuple[float, float]
    redundancy: float
    error: float | None


@dataclass(frozen=True)
class Ablation:
    """One-head ablation of a model on a text."""

    model: str
    score: str
    unit: str
    method: str
    mode: str
    texts: tuple[TextScores, ...]
    heads: tuple[HeadDamage, ...]
    layers: tuple[LayerDeposit, ...]
    pairs: tuple[PairDamage, ...]
    screen: Screen | None
    notes: tuple[str, ...]

    def ranked(self, on: str = "text") -> list[HeadDamage]:
        """The heads by the damage of their removal, worst first."""
        return sorted((each for each in self.heads if on in each.damage), key=lambda each: -each.damage[on])

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        if self.screen is not None:
            found["screen"] |= {
                "estimates": {name_of(heads): value for heads, value in self.screen.estimates},
                "chosen": [name_of(heads) for heads in self.screen.chosen],
                "sampled": [name_of(heads) for heads in self.screen.sampled],
            }
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per head, for a table."""
        guess = {} if self.screen is None else {name_of(heads): value for heads, value in self.screen.estimates}
        return [
            {"layer": each.layer, "head": each.head}
            | {f"damage_{text.name}": each.damage.get(text.name) for text in self.texts}
            | {f"error_{text.name}": each.error.get(text.name) for text in self.texts}
            | ({"estimate": guess.get(each.name)} if guess else {})
            for each in self.heads
        ]


def summarise(
    meter: Meter,
    wanted: Sequence[Heads] | None = None,
    *,
    model: str = "the model",
    mode: str = "exact",
    pairs: Sequence[Heads] = (),
    screen: Screen | None = None,
) -> Ablation:
    """What has been measured of the wanted heads (all by default), put together."""
    kind = kind_of(meter.model)
    asked = meter.all_heads() if wanted is None else sorted(wanted)
    measured = [heads for heads in asked if any(meter.has(heads, on) for on in meter.texts)]
    reason = meter.resumable.reason
    notes = [] if reason is None else [f"Every run was a full one: {reason}."]
    notes += [] if meter.floor_reason is None else [f"No deposit index: {meter.floor_reason}"]
    return Ablation(
        model=model,
        score=kind,
        unit=UNITS[kind],
        method=meter.method,
        mode=mode,
        texts=tuple(_text(meter, on) for on in meter.texts),
        heads=tuple(_head(meter, heads) for heads in measured),
        layers=deposits(meter, measured),
        pairs=tuple(sorted((_pair(meter, pair) for pair in pairs), key=lambda each: -each.redundancy)),
        screen=screen,
        notes=tuple(notes),
    )


def deposits(meter: Meter, measured: Sequence[Heads], on: str = "text") -> tuple[LayerDeposit, ...]:
    """The deposit of each layer all of whose heads are among those measured."""
    found = []
    if on not in meter.texts or not meter.has((), on):
        return ()
    base_S, floor_S = meter.scores((), on), meter.floor(on)
    for layer in range(len(meter.sizes)):
        heads = meter.all_heads([layer])
        if not all(each in measured and meter.has(each, on) for each in heads):
            continue
        ablated_SH = np.stack([meter.scores(each, on) for each in heads], axis=1)
        if len(base_S) > 1:
            spread = bootstrap(base_S, ablated_SH, floor_S, score="loss", seed=meter.seed)
            found.append(LayerDeposit(layer, spread.deposit, spread))
        else:
            floor = None if floor_S is None else float(floor_S.mean())
            found.append(LayerDeposit(layer, deposit(base_S[0], ablated_SH[0], floor, score="loss"), None))
    return tuple(found)


def pairs_to_try(meter: Meter, asked: str) -> tuple[list[Heads], Callable[[], list[Heads]]]:
    """The single heads that pairs are made of, and the pairs, known once those are measured.

    `asked`: a layer as 'layer0' or '0' (several: '0,3'), or 'all-top': the ten most damaging of the heads measured.
    """
    if asked == "all-top":

        def top() -> list[Heads]:
            known = [heads for heads in meter.all_heads() if meter.has(heads)]
            best = sorted(known, key=lambda heads: -meter.damage(heads))[:TOP_PAIRS]
            return [meter.checked(a + b) for a, b in combinations(best, 2)]

        return [], top
    layers = [_layer(part) for part in asked.split(",")]
    singles = [heads for layer in layers for heads in meter.all_heads([meter.checked(((layer, 0),))[0][0]])]
    return singles, lambda: [a + b for layer in layers for a, b in combinations(meter.all_heads([layer]), 2)]


# -------------------------------------------------------------------- inside
def _layer(part: str) -> int:
    digits = part.strip().lower().removeprefix("layer").strip()
    if not digits.isdecimal():
        raise BadValue(f"'{part.strip()}' names no pairs. Write a layer, such as layer0, or all-top.")
    return int(digits)


def _text(meter: Meter, on: str) -> TextScores:
    floor = meter.floor(on)
    cut = next(text.cut for text in meter.texts.values() if text.name == on)
    return TextScores(on, cut, tuple(meter.scores((), on).tolist()), None if floor is None else tuple(floor.tolist()))


def _head(meter: Meter, heads: Heads) -> HeadDamage:
    ((layer, head),) = heads
    there = [on for on in TEXTS if meter.has(heads, on)]
    change = {on: meter.scores(heads, on) - meter.scores((), on) for on in there}
    return HeadDamage(
        layer,
        head,
        {on: tuple(meter.scores(heads, on).tolist()) for on in there},
        {on: float(each.mean()) for on, each in change.items()},
        {on: _error(each) for on, each in change.items()},
    )


def _pair(meter: Meter, pair: Heads) -> PairDamage:
    first, second = pair
    base_S = meter.scores(())
    both_S, one_S, other_S = (meter.scores(each) - base_S for each in (pair, (first,), (second,)))
    excess_S = both_S - one_S - other_S
    return PairDamage(
        name_of((first,)),
        name_of((second,)),
        float(both_S.mean()),
        (float(one_S.mean()), float(other_S.mean())),
        float(excess_S.mean()),
        _error(excess_S),
    )


def _error(values_S: Array) -> float | None:
    """The standard error of a mean over sequences."""
    return float(np.std(values_S, ddof=1) / len(values_S) ** 0.5) if len(values_S) > 1 else None
