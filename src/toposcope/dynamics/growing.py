"""How much of the tokens ends up along the few directions that grow fastest.

Under a causal mask the first token sees only itself, and dx_1/dt = M x_1 + c. The share of the tokens' squared norm
in the invariant subspace of M's few largest eigenvalues is measured at the start and at the end. No theorem says
that later tokens follow; the share says whether they did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from toposcope.dynamics.fields import AttentionField
from toposcope.dynamics.run import Problem
from toposcope.dynamics.trajectory import Trajectory

Array = NDArray[np.float64]

WIDEST = 256  # of a state whose directions are looked at
FEW = 4  # directions at most that are told
MOST = 0.9  # of the squared norm that they must hold in the end


@dataclass(frozen=True)
class Leading:
    """The fewest of the fastest growing directions that hold most of the tokens in the end.

    `directions` of them, out of `width`; the shares are of the tokens' squared norm, a mean over tokens.
    """

    directions: int
    width: int
    share_at_start: float
    share_at_end: float


def leading(problem: Problem, found: Trajectory) -> Leading | None:
    """Where the tokens of a run lie among the directions that grow; None where a few do not hold most of them."""
    width = problem.start.shape[1]
    if len(problem.pieces) != 1 or not 1 < width <= WIDEST:
        return None
    if problem.limit is not None and problem.limit.any():
        return None
    field = problem.pieces[0].make()
    system = field.system
    if not system.causal or system.factor is not None or system.output is not None:
        return None
    matrix = first_token(field, problem.start.shape)
    growth = np.sort(np.linalg.eigvals(matrix).real)[::-1]
    for number in range(1, min(FEW, width - 1) + 1):
        least = float(growth[number - 1])
        if least <= 0:
            return None
        basis, held = _invariant(matrix, least)
        end = _share(found.final, basis[:, :held])
        if held <= FEW and end >= MOST:
            return Leading(held, width, _share(problem.start, basis[:, :held]), end)
    return None


def first_token(field: AttentionField, shape: tuple[int, ...]) -> Array:
    """M of dx_1/dt = M x_1 + c under a causal mask, column by column; the field must have no per-token factor."""
    still = np.zeros(shape)
    constant = field(still)[0]
    columns = []
    for number in range(shape[1]):
        state = still.copy()
        state[0, number] = 1.0
        columns.append(field(state)[0] - constant)
    return np.stack(columns, axis=1)


def _invariant(matrix: Array, least: float) -> tuple[Array, int]:
    """An orthonormal basis; its first columns span the invariant subspace of the eigenvalues from `least` on."""
    within = least - 1e-9 * float(np.abs(matrix).max())
    _, basis, held = scipy.linalg.schur(matrix, output="real", sort=lambda re, im: re >= within)
    return np.asarray(basis), int(held)


def _share(tokens: Array, basis: Array) -> float:
    """The mean over tokens of the part of the squared norm that lies in the span of an orthonormal basis."""
    unit = tokens / np.maximum(np.abs(tokens).max(axis=1, keepdims=True), 1e-300)
    sizes = (unit**2).sum(axis=1)
    known = sizes > 0
    if not known.any():
        return 0.0
    return float((((unit @ basis) ** 2).sum(axis=1)[known] / sizes[known]).mean())
