"""How queries and keys turn with position: pairs of channels, frequencies, and factors, from before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.match import Index
from toposcope.checkpoints.generic.record import Array
from toposcope.encodings.record import Pairing
from toposcope.encodings.rotary import channel_pairs

STILL = 1e-6  # changes smaller than this part of the largest entry are rounding


@dataclass(frozen=True, eq=False)
class MeasuredTurning:
    """The rotation of one side. `size_N` is what multiplies it by position, 1 at the first."""

    pairs_F2: Index
    frequencies_F: Array
    size_N: Array
    pairing: Pairing


def by_position(pre: Array, post: Array) -> Array | None:
    """The factor per position (N,) that alone makes `post` of `pre` (B, h, N, w), or None."""
    size_N = (pre * post).sum((0, 1, 3)) / np.maximum((pre * pre).sum((0, 1, 3)), 1e-300)
    fits = np.abs(post - size_N[:, None] * pre).max() < 1e-5 * np.abs(pre).max()
    return size_N if fits else None


def turning(pre: Array, post: Array) -> MeasuredTurning:
    """The rotation that makes `post` of `pre`, both (B, h, N, w), by angles w_f i at positions i = 0, 1, ..."""
    largest = float(np.abs(pre).max())
    moved = np.flatnonzero(np.abs(post - pre).max(axis=(0, 1, 2)) > STILL * largest)
    few = np.unique([0, pre.shape[1] - 1])
    some, other = pre[:3, few], post[:3, few]
    best: tuple[float, Index, Pairing] | None = None
    for pairs, pairing in _candidates(int(moved[0]), int(moved[-1]), pre.shape[-1]):
        error = _residual(some, other, pairs)[0] / largest
        if best is None or error < 0.5 * best[0]:
            best = (error, pairs, pairing)
    if best is None or best[0] > 1e-5:
        raise Refused("no rotation of channel pairs explains how queries or keys change with position")
    _, pairs, pairing = best
    error, ratio_NF = _residual(pre, post, pairs)
    if error > 1e-5 * largest:
        raise Refused("heads of a layer turn differently")
    at_N = np.arange(pre.shape[2])
    angle_NF, size_NF = np.unwrap(np.angle(ratio_NF), axis=0), np.abs(ratio_NF)
    if np.ptp(size_NF, axis=1).max() > 1e-5:
        raise Refused("channel pairs grow differently with position")
    frequencies_F = at_N @ angle_NF / (at_N @ at_N)
    if np.abs(angle_NF - at_N[:, None] * frequencies_F).max() > 1e-4:
        raise Refused("the angles are not proportional to position")
    return MeasuredTurning(pairs, frequencies_F, size_NF.mean(1), pairing)


def _candidates(first: int, last: int, wide: int) -> Iterator[tuple[Index, Pairing]]:
    """Pairings of channels from `first` on that hold the last one that moved."""
    least = last + 1 - first
    for width in range(least + least % 2, wide - first + 1, 2):
        yield channel_pairs(width, "half", first), "half"
    for start in {first, first - 1} if first else {first}:  # a pair's first channel may hardly move
        for width in range(last + 1 - start + (last + 1 - start) % 2, wide - start + 1, 2):
            yield channel_pairs(width, "interleaved", start), "interleaved"


def _residual(pre: Array, post: Array, pairs_F2: Index) -> tuple[float, Array]:
    """The largest error of the best complex factor per position and pair, and those factors (N, F)."""
    z_pre = pre[..., pairs_F2[:, 0]] + 1j * pre[..., pairs_F2[:, 1]]
    z_post = post[..., pairs_F2[:, 0]] + 1j * post[..., pairs_F2[:, 1]]
    power = (np.abs(z_pre) ** 2).sum((0, 1))
    ratio_NF = (z_pre.conj() * z_post).sum((0, 1)) / np.maximum(power, 1e-300)
    return float(np.abs(z_post - ratio_NF * z_pre).max()), ratio_NF
