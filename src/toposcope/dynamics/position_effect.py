"""What position changes: the same start run with an encoding and without, measured at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.dynamics.trajectory import Trajectory

Array = NDArray[np.float64]
MOMENTS = 241  # at which two series are set against one another


@dataclass(frozen=True)
class Both:
    """One quantity with the encoding and without position; None where it does not exist."""

    with_position: float | None
    without: float | None


@dataclass(frozen=True)
class PositionEffect:
    """A flow and the flow of the same tokens without position, both at `time`, the end of the shorter one.

    `clusters` and `cosine` (the mean over pairs) are as `observables` has them; `cosine_at_start` differs where
    position vectors are added to the tokens. `halved_at` is when half of the clusters of the start were left, None
    where that did not come. `widest` are the mean cosines where they differed most on the way, at `widest_at`.
    `distance` is the mean distance and `growth` the largest norm, each over that at the start. What needs pairs is
    None for one token.
    """

    time: float
    clusters: Both
    halved_at: Both
    cosine: Both
    cosine_at_start: Both
    widest: Both
    widest_at: float | None
    distance: Both
    growth: Both


def effect(placed: Trajectory, unplaced: Trajectory) -> PositionEffect:
    """Compare two runs of the same tokens, the second without position."""
    runs, time = (placed, unplaced), min(placed.end, unplaced.end)
    cosines = [_series(found, "cosine_mean") for found in runs]
    widest_at = _widest(cosines[0], cosines[1], time)
    return PositionEffect(
        time=time,
        clusters=Both(*(_whole(_at(*_series(found, "clusters"), time)) for found in runs)),
        halved_at=Both(*(_halved(*_series(found, "clusters"), time) for found in runs)),
        cosine=Both(*(_at(*each, time) for each in cosines)),
        cosine_at_start=Both(*(_at(*each, 0.0) for each in cosines)),
        widest=Both(*(None if widest_at is None else _at(*each, widest_at) for each in cosines)),
        widest_at=widest_at,
        distance=Both(*(_grown(*_series(found, "distance_mean"), time) for found in runs)),
        growth=Both(*(_grown(*_series(found, "norm_max"), time) for found in runs)),
    )


def _series(found: Trajectory, name: str) -> tuple[Array, Array]:
    """The moments at which an observable was measured, and its values there."""
    values = found.observables[name]
    known = np.isfinite(values)
    return found.times[known], values[known]


def _at(times: Array, values: Array, time: float) -> float | None:
    return float(np.interp(time, times, values)) if len(values) else None


def _whole(value: float | None) -> float | None:
    return None if value is None else float(round(value))


def _halved(times: Array, clusters: Array, end: float) -> float | None:
    """When half of the first number of clusters was first left, between moments by a straight line."""
    if not len(clusters) or clusters[0] < 2:
        return None
    few = np.flatnonzero(clusters <= clusters[0] / 2)
    if not len(few):
        return None
    last = few[0]
    first, share = last - 1, (clusters[last - 1] - clusters[0] / 2) / (clusters[last - 1] - clusters[last])
    time = float(times[first] + share * (times[last] - times[first]))
    return time if time <= end else None


def _widest(first: tuple[Array, Array], second: tuple[Array, Array], end: float) -> float | None:
    """When two series differ most."""
    if not len(first[1]) or not len(second[1]):
        return None
    at = np.linspace(0.0, end, MOMENTS)
    return float(at[np.abs(np.interp(at, *first) - np.interp(at, *second)).argmax()])


def _grown(times: Array, sizes: Array, time: float) -> float | None:
    """A size at a time over that at the start; between moments its logarithm is taken as straight."""
    if not len(sizes) or not sizes[0] > 0:
        return None
    return float(np.exp(np.interp(time, times, np.log(np.maximum(sizes / sizes[0], 1e-300)))))
