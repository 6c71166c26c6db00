"""Probes of an attention module that look at its outputs only: change the input in a known way, compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checks.inside import size
from toposcope.checks.runner import Runner
from toposcope.encodings.record import Array

SHIFTS = (1, 7, 100, 1000)


@dataclass(frozen=True)
class Outputs:
    """What the outputs say. All differences are relative to the size of the module's output on random tokens.

    * `batch`: outputs when the samples trade places or stand alone, against each sample's own;
    * `causal`, `reach`: which tokens can act on which, from changing one token at a time;
    * `moved`: outputs when the visible tokens trade places; 0 means the order of the tokens acts on nothing;
    * `repeated`: how much the output varies over positions when all hold the same token;
    * `shifted`: outputs when all positions grow by the same number (None: the module cannot be told positions, and
      sees all tokens, so nothing can be shifted).
    """

    batch: float
    causal: bool
    reach: int
    moved: float
    repeated: float
    shifted: float | None
    shifted_by: str


def probe(run: Runner, x_BND: Array, tolerance: float, rng: np.random.Generator, *, causal: bool | None) -> Outputs:
    """Run all probes on random tokens `x_BND`."""
    y_BND = run(x_BND)
    scale = size(y_BND) or 1.0
    influence_NN = _influence(run, x_BND, y_BND, scale, rng)
    n = len(influence_NN)
    seen_causal = not np.triu(influence_NN > 1e-6, 1).any()
    offset_NN = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    reach = int(offset_NN[influence_NN > 1e-6].max(initial=0))
    acts_causal = seen_causal if causal is None else causal
    same_BND = np.broadcast_to(x_BND[:, :1], x_BND.shape)
    repeated_BND = run(same_BND)
    shifted, how = _shifted(run, x_BND, y_BND, scale, acts_causal, reach, rng)
    return Outputs(
        batch=_batch(run, x_BND, y_BND) / scale,
        causal=seen_causal,
        reach=reach,
        moved=_moved(run, x_BND, y_BND, acts_causal, reach) / scale,
        repeated=float(np.abs(repeated_BND - repeated_BND.mean(axis=1, keepdims=True)).max()) / scale,
        shifted=None if shifted is None else shifted / scale,
        shifted_by=how,
    )


def _batch(run: Runner, x_BND: Array, y_BND: Array) -> float:
    order = np.roll(np.arange(len(x_BND)), 1)
    traded = np.abs(run(x_BND[order]) - y_BND[order]).max()
    alone = np.abs(run(x_BND[-1:]) - y_BND[-1:]).max()
    return float(max(traded, alone))


def _influence(run: Runner, x_BND: Array, y_BND: Array, scale: float, rng: np.random.Generator) -> Array:
    """How much output i changes when token j does: (N, N)."""
    n = x_BND.shape[1]
    influence_NN = np.zeros((n, n))
    for j in range(n):
        other = x_BND.copy()
        other[:, j] = rng.standard_normal(other[:, j].shape)
        influence_NN[:, j] = np.abs(run(other) - y_BND).max(axis=(0, 2)) / scale
    return influence_NN


def _moved(run: Runner, x_BND: Array, y_BND: Array, causal: bool, reach: int) -> float:
    """Let the tokens that one token sees trade places, and watch that one; without mask or window, watch all."""
    n = x_BND.shape[1]
    if not causal and reach == n - 1:
        order = _traded(np.arange(n))
        return float(np.abs(run(x_BND[:, order]) - y_BND[:, order]).max())
    watched = n - 1 if causal else n // 2
    others = np.array(
        [j for j in range(n) if j != watched and abs(j - watched) <= reach and (j < watched or not causal)],
        dtype=np.intp,
    )
    if reach > 0 and len(others) < 2:
        return float("inf")  # nothing can be traded; a window of one token is a position in itself
    order = np.arange(n)
    order[others] = _traded(others)
    return float(np.abs(run(x_BND[:, order])[:, watched] - y_BND[:, watched]).max())


def _traded(places: NDArray[np.intp]) -> NDArray[np.intp]:
    """Each token in another's place, near ones and far ones."""
    return np.roll(places[::-1], 1) if len(places) > 2 else places[::-1]


def _shifted(
    run: Runner, x_BND: Array, y_BND: Array, scale: float, causal: bool, reach: int, rng: np.random.Generator
) -> tuple[float | None, str]:
    n = x_BND.shape[1]
    if run.takes_positions:
        at = np.arange(n, dtype=np.float64)
        return max(float(np.abs(run(x_BND, at + s) - y_BND).max()) for s in SHIFTS), "positions given to the module"
    ahead = 0 if causal else reach
    steps = 2
    if reach + ahead + steps >= n or reach == 0:
        return None, "the module sees all tokens and cannot be told positions"
    # a window: move the tokens on by two, with new ones behind; what stands inside the window must come out the same
    new = np.concatenate([rng.standard_normal((len(x_BND), steps, x_BND.shape[2])), x_BND[:, :-steps]], axis=1)
    moved = run(new)[:, steps + reach : n - ahead]
    return float(np.abs(moved - y_BND[:, reach : n - ahead - steps]).max()), "tokens moved past the window"
