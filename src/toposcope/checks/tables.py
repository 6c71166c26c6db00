"""Position tables stored as weights: trained or not, a sinusoid or not, dead or repeated rows.

The size of the entries proves nothing: a trained table may have the spread of a fresh one. What tells is order. In a
fresh table, rows are unrelated: with each row centred and at length 1, the mean inner product of neighbours has mean
0 and standard deviation 1/sqrt(n d), and the largest singular value stays at the edge of the Marchenko-Pastur law.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding
from toposcope.checks.pairing import unit_rows
from toposcope.checks.row_order import READ, first_row, read_in_order, shuffled
from toposcope.encodings.record import Array, plain
from toposcope.encodings.stored import stored_sinusoid

RANDOM_Z = 5.0  # 200 fresh tables stayed below 3.4; five trained ones were between 59 and 69
EDGE = 1.05  # largest singular value over the edge: fresh tables stayed below 1.03, trained ones were above 2.9
LARGE = 0.1  # spread of a table that training need not put in order; fresh ones have 0.02, or 1 by torch's default
FEWEST_ROWS = 16
ONE_TONE = (
    1e-3  # share of a column that no single frequency explains; a stored sinusoid leaves 1e-9, trained 0.1 and more
)


@dataclass(frozen=True)
class Order:
    """How far a table is from unrelated rows."""

    neighbours: float  # mean cosine of neighbouring rows, mean row taken out
    z: float  # the largest of the z-scores at lags 1, 2, 4, 8
    edge: float  # largest singular value over that expected of unrelated entries

    @property
    def random(self) -> bool:
        return self.z < RANDOM_Z and self.edge < EDGE


def order_of(rows_ND: Array) -> Order:
    """Measure the order of a table's rows."""
    n, width = rows_ND.shape
    centred = rows_ND - rows_ND.mean(axis=0)
    unit = unit_rows(centred)
    # taking out the mean row alone makes any two of n rows lean apart by 1/(n-1)
    lean = 1.0 / max(n - 1, 1)
    singular = np.linalg.svd(centred, compute_uv=False) ** 2
    # the cosine of two unrelated rows spreads by 1/sqrt(d), d being the number of directions the rows really use
    used = float(singular.sum() ** 2 / max(float((singular**2).sum()), 1e-300))
    used = used if used < 0.5 * min(n, width) else float(width)  # few rows fill few directions, by chance alone
    means = {lag: float((unit[lag:] * unit[:-lag]).sum(axis=1).mean()) for lag in (1, 2, 4, 8) if lag < n}
    z = max(abs(mean + lean) * np.sqrt((n - lag) * used) for lag, mean in means.items())
    spread = float(centred.std()) or 1.0
    edge = np.sqrt(singular[0]) / (spread * (np.sqrt(n) + np.sqrt(width)))
    return Order(means[1], float(z), float(edge))


def untrained_from(rows_ND: Array) -> int | None:
    """The first position from which on all rows are unrelated; None where there is none (or it is the first)."""
    n = len(rows_ND)
    if n < 2 * FEWEST_ROWS:
        return None
    step = max(n // 32, 1)
    starts = (m for m in range(step, n - FEWEST_ROWS + 1, step) if _unrelated(rows_ND[m:]))
    first = next(starts, None)
    if first is None:
        return None
    # that suffix may still hold a few trained rows: put the border where the neighbours' cosines fall
    unit = unit_rows(rows_ND - rows_ND[first:].mean(axis=0))
    cosine = (unit[1:] * unit[:-1]).sum(axis=1)
    before, count = np.cumsum(cosine), np.arange(1, len(cosine) + 1)
    between = before[:-1] ** 2 / count[:-1] + (before[-1] - before[:-1]) ** 2 / (len(cosine) - count[:-1])
    start = int(np.argmax(between)) + 2  # pair k joins rows k and k + 1
    ordered = float(cosine[: start - 1].mean()) - float(cosine[start - 1 :].mean())
    return start if ordered > 0.05 and start <= n - FEWEST_ROWS // 2 else None


def _unrelated(rows_ND: Array) -> bool:
    """Whether rows could be chance; the quick test first, since most suffixes of a trained table fail it."""
    unit = unit_rows(rows_ND - rows_ND.mean(axis=0))
    mean = float((unit[1:] * unit[:-1]).sum(axis=1).mean()) + 1.0 / (len(unit) - 1)
    return abs(mean) * (unit.size - unit.shape[1]) ** 0.5 < RANDOM_Z and order_of(rows_ND).random


def one_tone(rows_ND: Array) -> Array:
    """For each column, the share that no single frequency explains: 0 for a sine of any frequency and phase.

    A sine obeys x[i+1] + x[i-1] = 2 cos(w) x[i]; the share is what the best such w leaves, against what a column of
    unrelated numbers would.
    """
    middle, around = rows_ND[1:-1], rows_ND[2:] + rows_ND[:-2]
    best = (middle * around).sum(axis=0) / np.maximum((middle**2).sum(axis=0), 1e-300)
    left = ((around - np.clip(best, -2, 2) * middle) ** 2).sum(axis=0)
    # the yardstick is how much the column itself varies, so that a slow drift does not pass for a sine
    varies = ((rows_ND - rows_ND.mean(axis=0)) ** 2).sum(axis=0)
    share: Array = left / np.maximum(varies, 1e-30 + 1e-12 * (rows_ND**2).sum(axis=0))
    return share


def published_sinusoid(rows_ND: Array) -> str | None:
    """What the sinusoid is that the table equals, or None."""
    found = stored_sinusoid(rows_ND)
    if found is None:
        return None
    said = found.encoding.parameters
    start = f", counted from {said['offset']}" if said["offset"] else ""
    base = plain(float(f"{said['base']:.6g}"))
    return f"{said['layout']}, base {base}{start}, size {said['scale']:.3g}"


def position_tables(model: Model, *, weights: bool = True) -> Iterator[Finding]:
    """Look at each table of learned vectors once, however many layers or stacks use it.

    With `weights`, the first layer that uses a table without visible order is asked whether it reads one from it.
    """
    seen: list[tuple[Array, list[int]]] = []
    rows_of: dict[int, Array] = {}
    for layer in model.layers:
        table = layer.encoding.input
        if table is None or table.length is None:
            continue
        if id(table) not in rows_of:
            rows_of[id(table)] = table.vectors(np.arange(table.length))
        rows_ND = rows_of[id(table)]
        same = next((numbers for other, numbers in seen if other is rows_ND or np.array_equal(rows_ND, other)), None)
        if same is None:
            seen.append((rows_ND, [layer.number]))
        else:
            same.append(layer.number)
    for rows_ND, numbers in seen:
        yield from look_at(rows_ND, tuple(numbers), model.layers[numbers[0]] if weights else None)


def look_at(rows_ND: Array, layers: tuple[int, ...], reader: Layer | None = None) -> Iterator[Finding]:
    """All findings about one table; `reader` is the layer that reads it first."""
    n, width = rows_ND.shape
    dead = np.flatnonzero(~rows_ND.any(axis=1))
    if len(dead) == n:
        yield Finding(
            "position-table",
            "fault",
            "the position table is all zero",
            f"All {n} rows of width {width} are zero: no position reaches the model.",
            "The table was not saved or not trained; look for it under another name.",
            layers=layers,
            evidence={"state": "zero"},
        )
        return
    yield from _rows(rows_ND, dead, layers)
    if n < FEWEST_ROWS:
        return
    leading = int(dead[-1]) + 1 if len(dead) and len(dead) == dead[-1] + 1 else 0
    if leading and n - leading >= FEWEST_ROWS and _is_sinusoid(rows_ND[leading:]):
        yield _behind_zeros(rows_ND[leading:], leading, layers)
        return
    if _is_sinusoid(rows_ND):
        known = published_sinusoid(rows_ND)
        name = f"the published sinusoid ({known})" if known else "a sinusoid of its own frequencies"
        unexplained = float(np.median(one_tone(rows_ND)))
        yield Finding(
            "position-table",
            "ok",
            "the position table is a sinusoid stored as weights",
            f"One frequency explains each column, to {unexplained:.0e}; it is {name}. It was computed, not learned.",
            layers=layers,
            evidence={"state": "sinusoid", "sinusoid": known or "other", "unexplained": unexplained},
        )
        return
    found = _trained_or_not(rows_ND, layers, reader)
    yield found
    if found.evidence["state"] == "trained":
        yield from first_row(rows_ND, layers)


def _behind_zeros(rows_ND: Array, leading: int, layers: tuple[int, ...]) -> Finding:
    known = published_sinusoid(rows_ND)
    name = f"the published one ({known})" if known else "one of its own frequencies"
    return Finding(
        "position-table",
        "warning",
        f"the position table is a sinusoid behind {leading} row{'s' * (leading > 1)} of zeros",
        f"From row {leading} on it is {name}. If the zeros are a row for padding, the first token must not use it.",
        f"Count positions from {leading}, or remove the zeros: as it stands, the first token has no position and "
        "the others may be off by as many.",
        layers=layers,
        evidence={"state": "sinusoid", "sinusoid": known or "other", "leading": leading},
    )


def _is_sinusoid(rows_ND: Array) -> bool:
    share = one_tone(rows_ND)
    # in half precision the slowest columns are too coarse for the first test, but still match a known table
    return bool(np.quantile(share, 0.9) <= ONE_TONE) or published_sinusoid(rows_ND) is not None


def _trained_or_not(rows_ND: Array, layers: tuple[int, ...], reader: Layer | None) -> Finding:
    n = len(rows_ND)
    order = order_of(rows_ND)
    numbers = {"neighbour_cosine": order.neighbours, "z": order.z, "edge": order.edge, "std": float(rows_ND.std())}
    figures = (
        f"Neighbouring rows have a mean cosine of {order.neighbours:.3f}, {order.z:.1f} standard deviations from "
        f"that of unrelated rows; the largest singular value is {order.edge:.2f} times theirs."
    )
    read = None if reader is None or order.z >= RANDOM_Z else read_in_order(reader, rows_ND)
    if read is not None and read >= READ:
        return Finding(
            "position-table",
            "ok",
            "the position table is the one that attention was trained with",
            f"Its rows alone show no order, but layer {reader.number if reader else 0} reads one from them: logits "
            f"between rows depend on how far apart they stand, by {read:.0f} standard deviations.",
            layers=layers,
            evidence={"state": "trained", **numbers, "read": read},
        )
    spread = float((rows_ND - rows_ND.mean(axis=0)).std())
    if order.random and spread >= LARGE:
        return Finding(
            "position-table",
            "cannot_tell",
            "the position table shows no order, trained or not",
            f"{figures} With entries that spread by {spread:.2f} a trained table may look like this too: what "
            "training adds is small beside what was drawn.",
            layers=layers,
            evidence={"state": "random", **numbers},
        )
    if order.random:
        return Finding(
            "position-table",
            "fault",
            "the position table is at its initial random state",
            f"{figures} No position has anything to do with the next (std {rows_ND.std():.4f})"
            + ("." if read is None else f", and attention reads no order from them ({read:.1f} deviations)."),
            "If the whole model is untrained this is expected. Otherwise the table was re-initialised on loading "
            "or left out of training: compare the tensor's name with the one your code expects.",
            layers=layers,
            evidence={"state": "random", **numbers},
        )
    if order.z < RANDOM_Z:
        return shuffled(rows_ND, layers, figures)
    start = untrained_from(rows_ND)
    if start is not None:
        return Finding(
            "position-table",
            "warning",
            f"positions from {start} on look untrained",
            f"Of {n} rows, the first {start} are ordered; among the last {n - start}, neighbours are as unrelated "
            "as random vectors.",
            f"Use texts of at most {start} tokens, or train on longer ones.",
            layers=layers,
            evidence={"state": "partly random", **numbers, "untrained_from": start},
        )
    known = {"state": "trained", **numbers}
    return Finding("position-table", "ok", "the position table is trained", figures, layers=layers, evidence=known)


def _rows(rows_ND: Array, dead: NDArray[np.intp], layers: tuple[int, ...]) -> Iterator[Finding]:
    n = len(rows_ND)
    if len(dead):
        beyond = len(dead) == n - dead[0] and len(dead) > 1
        yield Finding(
            "dead-rows",
            "warning",
            f"{len(dead)} positions have a vector of zeros",
            f"All positions from {dead[0]} on are zero." if beyond else f"Position {dead[0]} is the first of them.",
            f"Use texts of at most {dead[0]} tokens." if beyond else "Check whether these positions are ever used.",
            layers=layers,
            evidence={"positions": dead},
        )
    _, index, count = np.unique(rows_ND, axis=0, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero((count[index.reshape(-1)] > 1) & rows_ND.any(axis=1))
    if len(repeated):
        yield Finding(
            "repeated-rows",
            "warning",
            f"{len(repeated)} positions share their vector with another",
            f"The first is position {repeated[0]}. The model cannot tell such positions apart.",
            "A table stretched by copying looks like this: interpolate it, or train the new positions.",
            layers=layers,
            evidence={"positions": repeated},
        )
