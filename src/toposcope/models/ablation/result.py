"""What a model loses with each of its heads: damages, each layer's deposit, pairs that stand in for each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.core.result import Result
from toposcope.core.statistics import from_error
from toposcope.models.ablation.replacement import Method
from toposcope.models.ablation.runner import TEXTS, AblationRunner, Heads, TextName, name_of
from toposcope.models.ablation.screen import Screen
from toposcope.models.deposit import Deposit, DepositBootstrap, bootstrap, deposit
from toposcope.models.score import UNITS, Kind, kind_of

Mode = Literal["exact", "screen"]
Array = NDArray[np.float64]
TOP_PAIRS = 10  # heads whose pairs `all-top` tries


@dataclass(frozen=True)
class TextLoss:
    """The whole model on one text: the loss of each sequence, and what it is with positions off (None: unknown)."""

    name: str
    cut: str
    base: tuple[float, ...]
    floor: tuple[float, ...] | None


@dataclass(frozen=True)
class HeadDamage:
    """One head removed: the loss of each sequence of each text, how much it rises, and the standard error of that.

    `half_width` is that of Student's 95% interval of the damage on the text, None for one sequence. `position` is
    the damage on the text less that on its shuffled copy: above 0, the head is worth more where the order of words
    tells something (a heuristic). `estimate` is what the screen foretold. `positional` is the share of the head's
    logits that position alone makes, as `trace` measures it.
    """

    layer: int
    head: int
    losses: Mapping[str, tuple[float, ...]]
    damage: Mapping[str, float]
    error: Mapping[str, float | None]
    half_width: float | None
    position: float | None
    estimate: float | None = None
    positional: float | None = None

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


@dataclass(frozen=True, kw_only=True, eq=False)
class AblateResult(Result):
    """One-head ablation of a model on a text: losses in `unit`, or drifts for a model that predicts nothing.

    `positional_on` says on what the heads' shares of position were measured.
    """

    kind = "ablate"
    table = "heads"

    text: str
    predicts: Kind
    unit: str
    method: Method
    mode: Mode
    texts: tuple[TextLoss, ...]
    heads: tuple[HeadDamage, ...]
    layers: tuple[LayerDeposit, ...]
    pairs: tuple[PairDamage, ...] = ()
    screen: Screen | None = None
    notes: tuple[str, ...] = ()
    positional_on: str | None = None

    def ranked(self, on: str = "text") -> list[HeadDamage]:
        """The heads by the damage of their removal, worst first."""
        return sorted((each for each in self.heads if on in each.damage), key=lambda each: -each.damage[on])


def summarise(
    runner: AblationRunner,
    wanted: Sequence[Heads] | None = None,
    *,
    mode: Mode = "exact",
    pairs: Sequence[Heads] = (),
    screen: Screen | None = None,
) -> AblateResult:
    """What has been measured of the wanted heads (all by default), put together."""
    kind = kind_of(runner.model)
    asked = runner.all_heads() if wanted is None else sorted(wanted)
    measured = [heads for heads in asked if any(runner.has(heads, on) for on in runner.texts)]
    reason = runner.resumable.reason
    notes = [] if reason is None else [f"Every run was a full one: {reason}."]
    notes += [] if runner.floor_reason is None else [f"No deposit index: {runner.floor_reason}"]
    estimates = {} if screen is None else screen.estimates
    return AblateResult(
        text=next(iter(runner.texts.values())).cut,
        predicts=kind,
        unit=UNITS[kind],
        method=runner.method,
        mode=mode,
        texts=tuple(_text(runner, on) for on in runner.texts),
        heads=tuple(_head(runner, heads, estimates.get(name_of(heads))) for heads in measured),
        layers=deposits(runner, measured),
        pairs=tuple(sorted((_pair(runner, pair) for pair in pairs), key=lambda each: -each.redundancy)),
        screen=screen,
        notes=tuple(notes),
    )


def deposits(runner: AblationRunner, measured: Sequence[Heads], on: str = "text") -> tuple[LayerDeposit, ...]:
    """The deposit of each layer all of whose heads are among those measured."""
    found = []
    if on not in runner.texts or not runner.has((), on):
        return ()
    base_S, floor_S = runner.losses((), on), runner.floor(on)
    for layer in range(len(runner.sizes)):
        heads = runner.all_heads([layer])
        if not all(each in measured and runner.has(each, on) for each in heads):
            continue
        ablated_SH = np.stack([runner.losses(each, on) for each in heads], axis=1)
        if len(base_S) > 1:
            spread = bootstrap(base_S, ablated_SH, floor_S, score="loss", seed=runner.seed)
            found.append(LayerDeposit(layer, spread.deposit, spread))
        else:
            floor = None if floor_S is None else float(floor_S.mean())
            found.append(LayerDeposit(layer, deposit(base_S[0], ablated_SH[0], floor, score="loss"), None))
    return tuple(found)


def pairs_to_try(runner: AblationRunner, asked: str) -> tuple[list[Heads], Callable[[], list[Heads]]]:
    """The single heads that pairs are made of, and the pairs, known once those are measured.

    `asked`: a layer as 'layer0' or '0' (several: '0,3'), or 'all-top': the ten most damaging of the heads measured.
    """
    if asked == "all-top":

        def top() -> list[Heads]:
            known = [heads for heads in runner.all_heads() if runner.has(heads)]
            best = sorted(known, key=lambda heads: -runner.damage(heads))[:TOP_PAIRS]
            return [runner.checked(a + b) for a, b in combinations(best, 2)]

        return [], top
    layers = [_layer(part) for part in asked.split(",")]
    singles = [heads for layer in layers for heads in runner.all_heads([runner.checked(((layer, 0),))[0][0]])]
    return singles, lambda: [a + b for layer in layers for a, b in combinations(runner.all_heads([layer]), 2)]


# -------------------------------------------------------------------- inside
def _layer(part: str) -> int:
    digits = part.strip().lower().removeprefix("layer").strip()
    if not digits.isdecimal():
        raise BadValue(f"'{part.strip()}' names no pairs. Write a layer, such as layer0, or all-top.")
    return int(digits)


def _text(runner: AblationRunner, on: TextName) -> TextLoss:
    floor = runner.floor(on)
    base = tuple(runner.losses((), on).tolist())
    return TextLoss(on, runner.texts[on].cut, base, None if floor is None else tuple(floor.tolist()))


def _head(runner: AblationRunner, heads: Heads, estimate: float | None) -> HeadDamage:
    ((layer, head),) = heads
    there = [on for on in TEXTS if runner.has(heads, on)]
    change = {on: runner.losses(heads, on) - runner.losses((), on) for on in there}
    damage = {str(on): float(each.mean()) for on, each in change.items()}
    error = {str(on): _error(each) for on, each in change.items()}
    return HeadDamage(
        layer,
        head,
        losses={on: tuple(runner.losses(heads, on).tolist()) for on in there},
        damage=damage,
        error=error,
        half_width=from_error(error["text"], len(change["text"])) if "text" in change else None,
        position=damage["text"] - damage["shuffled"] if {"text", "shuffled"} <= set(damage) else None,
        estimate=estimate,
    )


def _pair(runner: AblationRunner, pair: Heads) -> PairDamage:
    first, second = pair
    base_S = runner.losses(())
    both_S, one_S, other_S = (runner.losses(each) - base_S for each in (pair, (first,), (second,)))
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
