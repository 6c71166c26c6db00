"""What vectors at known positions say about the rotation that made them: arrays in, numbers out, in float64.

All functions take vectors x_TPHR of a run in which the same T contents stand at P positions, so that whatever differs
between positions is the work of the encoding; the first position is what the others are compared with. A pair of
channels (a, b), read as z = a + ib, turns by its complex gain c(p) = sum y conj(z) / sum |z|^2: the angle of c is by
how much, its length by what it grew, and what c z leaves of y is no turning at all.
Shapes: T contents, P positions, H heads, R head width, F channel pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toposcope.encodings.record import Array

Pairs = NDArray[np.intp]
Channels = NDArray[np.intp]
_TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Turning:
    """What pairs of channels do from the first position to each other one; `energy_F` is sum |z|^2."""

    pairs_F2: Pairs
    gain_PF: NDArray[np.complex128]
    remainder_PF: Array  # what c z leaves, relative to z
    energy_F: Array
    energy_PF: Array  # sum |y|^2

    @property
    def angle_PF(self) -> Array:
        """By how much, from -pi to pi."""
        return np.angle(self.gain_PF)

    @property
    def length_PF(self) -> Array:
        """What it grew by."""
        return np.abs(self.gain_PF)

    def misfit_PF(self, angle_PF: Array, length_PF: Array | float = 1.0) -> Array:
        """|y - l e^{i angle} z|^2, summed over contents and heads: what such a turning would leave."""
        said_PF = length_PF * np.exp(1j * angle_PF)
        cross_PF = np.real(np.conj(said_PF) * self.gain_PF) * self.energy_F
        return np.maximum(self.energy_PF + np.abs(said_PF) ** 2 * self.energy_F - 2 * cross_PF, 0.0)


def turning(x_TPHR: Array, pairs_F2: ArrayLike) -> Turning:
    """What these pairs do."""
    pairs = np.asarray(pairs_F2, dtype=np.intp).reshape(-1, 2)
    y_TPHF = _pairs(x_TPHR, pairs)
    z_T1HF = y_TPHF[:, :1]
    energy_F = (np.abs(z_T1HF) ** 2).sum((0, 1, 2))
    whole_F = np.maximum(energy_F, _TINY)
    gain_PF = (y_TPHF * z_T1HF.conj()).sum((0, 2)) / whole_F
    left_PF = (np.abs(y_TPHF - gain_PF[:, None, :] * z_T1HF) ** 2).sum((0, 2))
    return Turning(pairs, gain_PF, np.sqrt(left_PF / whole_F), energy_F, (np.abs(y_TPHF) ** 2).sum((0, 2)))


def _pairs(x_TPHR: Array, pairs_F2: Pairs) -> NDArray[np.complex128]:
    wide = np.asarray(x_TPHR, dtype=np.float64)
    found: NDArray[np.complex128] = wide[..., pairs_F2[:, 0]] + 1j * wide[..., pairs_F2[:, 1]]
    return found


def movement(x_TPHR: Array) -> Array:
    """How far each channel moves at most between positions, relative to its size at the first: (R,)."""
    wide = np.asarray(x_TPHR, dtype=np.float64)
    first = wide[:, :1]
    size_R = (first**2).sum((0, 1, 2))
    moved_R = ((wide - first) ** 2).sum((0, 2)).max(axis=0)
    found: Array = np.sqrt(moved_R / np.maximum(size_R, 1e-18 * max(float(size_R.max(initial=0.0)), _TINY)))
    return found


@dataclass(frozen=True, eq=False)
class Partners:
    """The pairs found, channels that stay still, and channels that move without a partner (beyond rounding)."""

    pairs_F2: Pairs
    still: Channels
    alone: Channels


def partners(x_TPHR: Array, rounding: float, *, floor: float | None = None) -> Partners:
    """Find for every channel that moves the one with which it turns.

    With the right partner b, channel a at any position is a sum of a and b at the first. The pair that leaves least
    of both is taken, from the channel that moves most on, if it explains what one channel alone does not. Movement
    below `floor` (relative; by default a few roundings) counts as none.
    """
    wide = np.asarray(x_TPHR, dtype=np.float64)
    floor = 6 * rounding if floor is None else floor
    width = wide.shape[-1]
    x_SR = wide[:, 0].reshape(-1, width)
    y_PSR = wide.transpose(1, 0, 2, 3).reshape(wide.shape[1], -1, width)
    size_R = (x_SR**2).sum(0)
    there = np.flatnonzero(size_R > 1e-18 * max(float(size_R.max(initial=0.0)), _TINY))
    moved_R = movement(wide)
    moving = [int(a) for a in there if moved_R[a] > floor]
    with_RR, alone_R = _unexplained(x_SR, y_PSR)
    pairs, alone, left = [], [], set(there.tolist())
    for a in sorted(moving, key=lambda each: -moved_R[each]):
        if a not in left:
            continue
        left.discard(a)
        other = min(left, key=lambda each: with_RR[a, each], default=None)
        least = max(0.3 * alone_R[a], 4 * (8 * rounding) ** 2)
        if other is not None and with_RR[a, other] < least:
            pairs.append((min(a, other), max(a, other)))
            left.discard(other)
        elif moved_R[a] > 5 * floor:  # below that, too slow to tell
            alone.append(a)
    turned = {channel for pair in pairs for channel in pair}
    still = [r for r in range(width) if r not in turned and r not in alone]
    return Partners(
        np.array(sorted(pairs), dtype=np.intp).reshape(-1, 2),
        np.array(still, dtype=np.intp),
        np.array(sorted(alone), dtype=np.intp),
    )


def _unexplained(x_SR: Array, y_PSR: Array) -> tuple[Array, Array]:
    """What channels a and b at the first position leave of both elsewhere (R, R), and what a alone leaves of a (R,).

    Shares of the channels' energy.
    """
    gram_RR = x_SR.T @ x_SR
    cross_PRR = y_PSR.swapaxes(1, 2) @ x_SR
    energy_PR = (y_PSR**2).sum(1)
    own_R = np.diag(gram_RR)
    determinant_RR = own_R[:, None] * own_R - gram_RR**2
    safe = determinant_RR > 1e-10 * own_R[:, None] * own_R
    determinant_RR = np.where(safe, determinant_RR, np.inf)
    self_PR = np.diagonal(cross_PRR, axis1=1, axis2=2)
    explained_PRR = (
        self_PR[:, :, None] ** 2 * own_R
        - 2 * self_PR[:, :, None] * cross_PRR * gram_RR
        + cross_PRR**2 * own_R[:, None]
    ) / determinant_RR
    whole_R = np.maximum(energy_PR.sum(0), _TINY)
    left_RR = np.maximum(energy_PR[:, :, None] - explained_PRR, 0).sum(0) / whole_R[:, None]
    alone_R = np.maximum(energy_PR - self_PR**2 / np.maximum(own_R, _TINY), 0).sum(0) / whole_R
    return left_RR + left_RR.T, alone_R


def frequencies(
    found: Turning, positions: ArrayLike, rounding: float, *, near_F: Array | None = None
) -> tuple[Array, Array]:
    """The frequency of every pair, in radians per token, and its error bar: from the nearest position outwards.

    An angle is known up to whole turns only, so each position refines what nearer ones have said; positions that at
    most double are safe. `near_F` is a first guess for positions that do not begin near the first. An error bar of
    infinity means that no position could be used.
    """
    at_P = np.asarray(positions, dtype=np.float64)
    step_P = at_P - at_P[0]
    noise_F = np.maximum(found.remainder_PF.max(axis=0, initial=0.0), rounding)
    count = found.gain_PF.shape[1]
    w_F = np.zeros(count) if near_F is None else np.array(near_F, dtype=np.float64)
    error_F = np.full(count, np.inf if near_F is None else 0.0)
    first = True
    angle_PF = found.angle_PF
    for i in np.argsort(step_P):
        if step_P[i] <= 0:
            continue
        new_F = noise_F / step_P[i]
        if first and near_F is None:
            w_F, error_F = angle_PF[i] / step_P[i], new_F  # may be off by whole turns where the step is above 1
            first = False
            continue
        turns_F = np.round((w_F * step_P[i] - angle_PF[i]) / (2 * np.pi))
        safe_F = (error_F * step_P[i] < np.pi / 2) & ((new_F < error_F) | (near_F is not None))
        w_F = np.where(safe_F, (angle_PF[i] + 2 * np.pi * turns_F) / step_P[i], w_F)
        error_F = np.where(safe_F, new_F, error_F)
    return w_F, error_F + np.abs(w_F) * 2.0**-24


def whole_turns_left_out(angle: ArrayLike) -> Array:
    """The angles from -pi to pi."""
    return np.asarray((np.asarray(angle) + np.pi) % (2 * np.pi) - np.pi)


@dataclass(frozen=True, eq=False)
class Sources:
    """Where the channels of a head come from: the row of the map that gave each (-1: none found), and its factor."""

    gain_R: Array  # NaN where no map was found
    row_R: NDArray[np.intp]  # their order in the head as its rows are stored


def sources(x_TR: Array, outputs_TC: list[Array], rounding: float) -> Sources:
    """Look for every channel at the first position among the outputs of maps: equal up to a factor in all contents.

    Of maps that fit, those with one factor for all channels are preferred, then the last. Rows are ranks within the
    head: those of the map that gives its first channel, then of the next map.
    """
    width = x_TR.shape[1]
    unit_TR, size_R = _unit(x_TR)
    gain_R, rank_R = np.full(width, np.nan), np.full(width, np.inf)
    row_R, map_R = np.full(width, -1), np.full(width, -1)
    for number, out_TC in enumerate(outputs_TC):
        other_TC, size_C = _unit(out_TC)
        alike_RC = np.abs(unit_TR.T @ other_TC)
        found_R = alike_RC.argmax(1)
        good_R = alike_RC[np.arange(width), found_R] > 1 - (40 * rounding) ** 2 - 1e-9
        if not good_R.any():
            continue
        sign_R = np.sign((unit_TR * other_TC[:, found_R]).sum(0))
        ratio_R = sign_R * size_R / np.maximum(size_C[found_R], _TINY)
        uneven = np.std(np.log(np.abs(ratio_R[good_R]) + _TINY)) > max(1e-3, 40 * rounding)
        take_R = good_R & (uneven <= rank_R)
        alike_RC[np.arange(width), found_R] = 0
        clear_R = alike_RC.max(1) < 1 - (100 * rounding) ** 2 - 1e-8  # no other row of the map is the same
        gain_R, rank_R = np.where(take_R, ratio_R, gain_R), np.where(take_R, float(uneven), rank_R)
        row_R, map_R = np.where(take_R, np.where(clear_R, found_R, -1), row_R), np.where(take_R, number, map_R)
    return Sources(gain_R, _ranks(row_R, map_R))


def _unit(x_TC: Array) -> tuple[Array, Array]:
    size_C = np.linalg.norm(x_TC, axis=0)
    return x_TC / np.where(size_C > 0, size_C, 1.0), size_C


def _ranks(row_R: NDArray[np.intp], map_R: NDArray[np.intp]) -> NDArray[np.intp]:
    if (row_R < 0).any():
        return np.full(len(row_R), -1)
    ranks = np.empty(len(row_R), dtype=np.intp)
    start = 0
    for number in dict.fromkeys(map_R.tolist()):
        of_map = np.flatnonzero(map_R == number)
        ranks[of_map] = start + np.argsort(np.argsort(row_R[of_map]))
        start += len(of_map)
    return ranks
