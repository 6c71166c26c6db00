"""Does everything hang on one head? The deposit index of one layer, from the scores with each head removed.

Let a be the score of the whole model, a_h its score without head h, and phi the floor: what is reached without the
skill in question. The damage of a head is capped where nothing is left to lose, since a broken model can score below
the floor:

    damage_h = max(0, a - max(a_h, phi))               for an accuracy
    damage_h = max(0, min(a_h, phi) - a)               for a loss; phi is then the loss with positions switched off

and with damages in descending order d_1 >= d_2 >= ...

* d_max   max_h |a - a_h| in the direction that hurts, not capped: the largest drop in points (or rise of the loss);
* d_rel   d_1 / |a - phi|, the share of the skill that the most important head carries;
* share   d_1 / sum_h d_h;  gini  of the damages, 0 if all are equal and 1 - 1/H for a single one;
* di      (d_1 - d_2) / |a - phi|, the deposit index: 1 if one head carries everything, 0 if at least two heads matter
          equally, and also 0 if no single head matters, as when two can stand in for each other.

d_max alone says little: on some tasks every head costs much. The concentration is what is specific.

Where the model has hardly any skill to lose, all but d_max is None: for an accuracy where a - phi < 0.1; for a
loss, whose size says nothing by itself, where phi - a is less than three times `noise`, the standard error of that
difference. Without a floor only d_max, share and gini are defined, and damages have no cap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.core.errors import BadValue, did_you_mean

Array = NDArray[np.float64]
Score = Literal["accuracy", "loss"]

LEAST_ACCURACY = 0.1  # of accuracy above the floor
LEAST_ERRORS = 3  # standard errors of loss below the floor
_ROUNDING = 1e-12  # 0.9 - 0.8 is not less than 0.1
_BLOCK = 2**22  # numbers drawn at once by the bootstrap


@dataclass(frozen=True)
class Deposit:
    """How the loss of skill is spread over the heads of a layer; None where section 8 leaves a measure undefined.

    `head` is the one whose removal hurts most and `second` the next; None where removing it does no damage.
    """

    d_max: float
    d_rel: float | None
    share: float | None
    gini: float | None
    di: float | None
    head: int | None
    second: int | None


@dataclass(frozen=True)
class Interval:
    """The middle `level` of the bootstrap's draws in which the measure is defined; `defined` is their share."""

    low: float
    high: float
    defined: float


@dataclass(frozen=True)
class DepositBootstrap:
    """A deposit and how far it depends on the sequences it was measured on.

    The index is never negative, so that of pure noise is above 0, and so is its interval: read it together with
    `same_head`, the share of draws in which the same head hurts most.
    """

    deposit: Deposit
    d_rel: Interval | None
    share: Interval | None
    gini: Interval | None
    di: Interval | None
    same_head: float | None
    draws: int
    level: float


def deposit(
    base: float, ablated_H: ArrayLike, floor: float | None, *, score: Score = "accuracy", noise: float = 0.0
) -> Deposit:
    """The deposit index of one layer from the base score, the score without each head, and the floor.

    `noise` is for a loss: the standard error of floor - base (see `bootstrap`, which computes it).
    """
    ablated = _numbers("the scores without each head", ablated_H, 1)
    _check(score)
    base_ = _numbers("the base score", base, 0)
    floor_ = None if floor is None else _numbers("the floor", floor, 0)
    return _deposit(base_, ablated, floor_, score, _least(score, noise))


def bootstrap(
    base_S: ArrayLike,
    ablated_SH: ArrayLike,
    floor: ArrayLike | None,
    *,
    score: Score = "accuracy",
    draws: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> DepositBootstrap:
    """The deposit index from scores per sequence, with percentile intervals over resampled sequences.

    A draw takes S sequences with replacement, the same ones for the base and for every ablation. `floor` is a number,
    or one number per sequence where it was measured on the same sequences (the loss with positions switched off).
    """
    _check(score)
    base = _numbers("the base scores", base_S, 1)
    ablated = _numbers("the scores without each head", ablated_SH, 2)
    if len(base) < 2 or len(ablated) != len(base):
        raise BadValue(
            f"the bootstrap needs two sequences at least, with scores for each: got {len(base)} base scores "
            f"and {len(ablated)} rows of ablated ones."
        )
    if draws < 1 or not 0 < level < 1:
        raise BadValue(f"the bootstrap needs draws >= 1 and 0 < level < 1, got {draws} and {level}.")
    given = None if floor is None else _floor(floor, len(base))
    columns = [base, ablated]
    if given is not None and given.ndim == 1:
        columns.append(given)
    noise = 0.0 if given is None else float(np.std(given - base, ddof=1)) / np.sqrt(len(base))
    least = _least(score, noise)
    scores_SC = np.column_stack(columns)
    last = 1 + ablated.shape[1]

    def split(means_DC: Array) -> tuple[Array, Array, Array | None]:
        return means_DC[..., 0], means_DC[..., 1:last], means_DC[..., last] if len(columns) == 3 else given

    point = _deposit(*split(scores_SC.mean(axis=0)), score, least)
    drawn_base, drawn_heads, drawn_floor = split(_resampled_means(scores_SC, draws, np.random.default_rng(seed)))
    found = _measures(drawn_base, drawn_heads, drawn_floor, score, least)
    leaders_D = _harm(drawn_base, drawn_heads, score).argmax(axis=-1)
    return DepositBootstrap(
        deposit=point,
        **{name: _interval(getattr(point, name), found[name], level) for name in ("d_rel", "share", "gini", "di")},
        same_head=None if point.head is None else float(np.mean(leaders_D == point.head)),
        draws=draws,
        level=level,
    )


def gini(values_H: ArrayLike) -> Array:
    """Gini's coefficient along the last axis: sum_ij |x_i - x_j| / (2 H sum_i x_i), NaN where the sum is 0."""
    ordered = np.sort(np.asarray(values_H, dtype=np.float64), axis=-1)
    count = ordered.shape[-1]
    ranks = 2 * np.arange(1, count + 1) - count - 1
    return _ratio((ordered * ranks).sum(axis=-1), count * ordered.sum(axis=-1))


def _measures(base: Array, ablated_H: Array, floor: Array | None, score: Score, least: float) -> dict[str, Array]:
    """Every measure, for one base score or for many at once; NaN where undefined."""
    harm_H = _harm(base, ablated_H, score)
    damage_H = np.maximum(harm_H, 0.0)
    span = np.full(np.shape(base), np.nan)
    skilled = np.full(np.shape(base), True)
    if floor is not None:
        span = base - floor if score == "accuracy" else floor - base
        skilled = (span > 0) & (span >= least - _ROUNDING)
        damage_H = np.minimum(damage_H, np.where(skilled, span, np.inf)[..., None])
    ordered_H = -np.sort(-damage_H, axis=-1)
    first, total = ordered_H[..., 0], ordered_H.sum(axis=-1)
    second = ordered_H[..., 1] if ordered_H.shape[-1] > 1 else np.zeros_like(first)
    found = {
        "d_rel": _ratio(first, span),
        "share": _ratio(first, total),
        "gini": gini(damage_H),
        "di": _ratio(first - second, span),
    }
    return {"d_max": harm_H.max(axis=-1)} | {name: np.where(skilled, each, np.nan) for name, each in found.items()}


def _deposit(base: Array, ablated_H: Array, floor: Array | None, score: Score, least: float) -> Deposit:
    found = {name: _or_none(each) for name, each in _measures(base, ablated_H, floor, score, least).items()}
    harm_H = _harm(base, ablated_H, score)
    order = np.argsort(-harm_H, kind="stable")
    harmful = [int(head) for head in order[:2] if harm_H[head] > 0]
    head, second = (*harmful, None, None)[:2]
    d_max = found.pop("d_max")
    assert d_max is not None
    return Deposit(d_max=d_max, **found, head=head, second=second)


def _harm(base: Array, ablated_H: Array, score: Score) -> Array:
    """How much worse each ablation is, in points or in loss; negative where it helps."""
    return (base[..., None] - ablated_H) * (1 if score == "accuracy" else -1)


def _resampled_means(scores_SC: Array, draws: int, generator: np.random.Generator) -> Array:
    """Means over S sequences drawn with replacement, (draws, C): how often each was drawn, times the scores."""
    count = len(scores_SC)
    parts = []
    for start in range(0, draws, max(1, _BLOCK // count)):
        size = min(max(1, _BLOCK // count), draws - start)
        chosen_DS = generator.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        times_DS = np.bincount(chosen_DS.ravel(), minlength=size * count).reshape(size, count)
        parts.append(times_DS @ scores_SC / count)
    return np.concatenate(parts)


def _interval(point: float | None, values_D: Array, level: float) -> Interval | None:
    defined = values_D[~np.isnan(values_D)]
    if point is None or not len(defined):
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), len(defined) / len(values_D))


def _least(score: Score, noise: float) -> float:
    if not (np.isfinite(noise) and noise >= 0):
        raise BadValue(f"noise is a standard error, a number from 0 on, got {noise}.")
    return LEAST_ACCURACY if score == "accuracy" else LEAST_ERRORS * noise


def _ratio(top: Array, bottom: Array) -> Array:
    """top / bottom, NaN where bottom is 0 or NaN."""
    fine = np.asarray(bottom != 0)
    return np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=fine)


def _or_none(value: Array) -> float | None:
    return None if np.isnan(value) else float(value)


def _check(score: str) -> None:
    if score not in get_args(Score):
        raise BadValue(f"'{score}' is no kind of score. {did_you_mean(str(score), get_args(Score))}")


def _floor(floor: ArrayLike, count: int) -> Array:
    given = np.asarray(floor, dtype=np.float64)
    if given.shape not in ((), (count,)) or not np.isfinite(given).all():
        raise BadValue(f"the floor is one finite number, or one for each of {count} sequences; got {given.shape}.")
    return given


def _numbers(what: str, given: ArrayLike, dimensions: int) -> Array:
    array = np.asarray(given, dtype=np.float64)
    if array.ndim != dimensions or array.size == 0 or not np.isfinite(array).all():
        raise BadValue(
            f"{what} must be finite numbers in an array of {dimensions} dimensions that is not empty, "
            f"got shape {array.shape}."
        )
    return array
