"""Which output of which linear map is a channel of the queries, keys or values: found by value, not by name.

A channel is matched over all tokens where no position acts on it, else at the first position over several texts,
where a rotation turns nothing. A factor is allowed, so multipliers are found as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.record import Array

Index = NDArray[np.intp]
TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class ModuleFlow:
    """What went through a module, as (B, N, C) arrays; `raw_x` and `raw_y` keep the module's own last axis."""

    name: str
    x: Array
    y: Array
    wide: int  # the width the module itself acts on
    after: int


@dataclass(frozen=True, eq=False)
class Columns:
    """For each channel (h, w): the linear map it comes from, the column, the factor; and a norm on the way.

    With a norm, `norm_column` says which of its channels it is, and `norm_factor` multiplies what the norm gives.
    """

    linear: Index
    column: Index
    factor: Array
    norm: ModuleFlow | None = None
    norm_column: Index | None = None
    norm_factor: float = 1.0


def same(one: Array | None, other: Array | None, tolerance: float = TOLERANCE) -> bool:
    """Whether two activations are the same, up to rounding."""
    if one is None or other is None or one.shape != other.shape:
        return False
    return bool(np.abs(one - other).max() <= tolerance * max(1e-9, float(np.abs(other).max())))


def matched(wanted_CS: Array, among_OS: Array, tolerance: float = TOLERANCE) -> tuple[Index, Array]:
    """Each row of `wanted` among the rows of `among` up to a factor: its number (-1: none) and the factor.

    Rows are compared by their direction; candidates are found by sorting one random projection of it.
    """
    index_C = np.full(len(wanted_CS), -1)
    factor_C = np.ones(len(wanted_CS))
    if not len(among_OS):
        return index_C, factor_C
    rng = np.random.default_rng(0)
    size_C, unit_CS = _units(wanted_CS)
    size_O, unit_OS = _units(among_OS)
    for _ in range(2):  # a second direction, for rows at right angles to the first
        direction_S = rng.standard_normal(wanted_CS.shape[1])
        key_C, key_O = np.abs(unit_CS @ direction_S), np.abs(unit_OS @ direction_S)
        order_O = np.argsort(key_O)
        sorted_O = key_O[order_O]
        slack = 4 * tolerance * float(np.linalg.norm(direction_S))
        low_C = np.searchsorted(sorted_O, key_C - slack)
        high_C = np.searchsorted(sorted_O, key_C + slack)
        todo_C = (index_C < 0) & (size_C > 0)
        for step in range(min(int((high_C - low_C).max(initial=0)), 64)):
            at = np.flatnonzero(todo_C & (index_C < 0) & (low_C + step < high_C))
            if not len(at):
                break
            there = order_O[low_C[at] + step]
            sign = np.sign((unit_CS[at] * unit_OS[there]).sum(1))
            fits = np.abs(unit_CS[at] - sign[:, None] * unit_OS[there]).max(1) < tolerance
            fits &= size_O[there] > 0
            index_C[at[fits]] = there[fits]
            factor_C[at[fits]] = (sign * size_C[at] / np.where(size_O[there] > 0, size_O[there], 1))[fits]
    return index_C, factor_C


def _units(rows: Array) -> tuple[Array, Array]:
    size = np.linalg.norm(rows, axis=1)
    return size, rows / np.where(size > 0, size, 1)[:, None]


def columns(target: Array, linears: Sequence[ModuleFlow], norms: Sequence[ModuleFlow], who: str) -> Columns:
    """Where the channels of queries, keys or values (B, h, N, w) come from."""
    texts, heads, length, wide = target.shape
    whole = np.moveaxis(target, 2, 1).reshape(texts * length, heads * wide).T
    found = _in_linears(whole, linears, lambda y: y.reshape(texts * length, -1).T)
    if (found.column >= 0).all():
        return _shaped(found, heads, wide)
    first = target[:, :, 0, :].reshape(texts, heads * wide).T
    if np.ptp(first, axis=1).max() < 1e-9 * np.abs(first).max():
        raise Refused(f"{who}: the first token is the same in every text")
    for norm in norms:
        if norm.y.shape[2] != heads * wide:
            continue
        index, factor = matched(first, norm.y[:, 0].T)
        if (index >= 0).all() and np.ptp(factor) < 1e-5:
            source = _in_linears(norm.x[:, 0].T[index], linears, lambda y: y[:, 0].T)
            if (source.column >= 0).all():
                place = _shaped(source, heads, wide)
                return Columns(
                    place.linear, place.column, place.factor, norm, index.reshape(heads, wide), float(factor[0])
                )
    found = _in_linears(first, linears, lambda y: y[:, 0].T)
    if (found.column < 0).any():
        share = float(np.mean(found.column < 0))
        raise Refused(f"{who}: {share:.0%} of the channels come from no linear map")
    return _shaped(found, heads, wide)


def _in_linears(wanted: Array, linears: Sequence[ModuleFlow], seen: Callable[[Array], Array]) -> Columns:
    linear, column, factor = np.full(len(wanted), -1), np.full(len(wanted), -1), np.ones(len(wanted))
    for number, each in enumerate(linears):
        left = np.flatnonzero(column < 0)
        if not len(left):
            break
        index, ratio = matched(wanted[left], seen(each.y))
        hit = index >= 0
        linear[left[hit]], column[left[hit]], factor[left[hit]] = number, index[hit], ratio[hit]
    return Columns(linear, column, factor)


def _shaped(found: Columns, heads: int, wide: int) -> Columns:
    shape = heads, wide
    return Columns(found.linear.reshape(shape), found.column.reshape(shape), found.factor.reshape(shape))


def before(found: Columns, linears: Sequence[ModuleFlow], target: Array) -> tuple[Array, bool | None]:
    """The channels before any position acts, (B, h, N, w); and whether a norm comes only after (None: no norm)."""
    texts, heads, length, wide = target.shape
    out = np.zeros((texts, heads, length, wide))
    for number in np.unique(found.linear):
        h, w = np.nonzero(found.linear == number)
        picked = linears[number].y[:, :, found.column[h, w]] * found.factor[h, w]
        out[:, h, :, w] = np.moveaxis(picked, 2, 0)
    if found.norm is None:
        return out, None
    normed_from = through(found, found.norm.x, heads, wide)
    if np.abs(normed_from - out).max() < 1e-5 * np.abs(out).max():
        return through(found, found.norm.y, heads, wide) * found.norm_factor, False
    return out, True


def through(found: Columns, flow: Array, heads: int, wide: int) -> Array:
    """A norm's input or output (B, N, C) in the order of the channels, (B, h, N, w)."""
    if found.norm_column is None:
        raise Refused("a norm without columns")
    picked = flow[:, :, found.norm_column.ravel()].reshape(*flow.shape[:2], heads, wide)
    return np.moveaxis(picked, 1, 2)
