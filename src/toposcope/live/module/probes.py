"""Probes of an attention module: change its input in a known way, and compare its outputs, queries, keys and logits.

OutputChanges: samples trade places, tokens trade places, one token is repeated, positions grow.

Inside: with one token everywhere, what differs between positions is the encoding's work. With the same token made ten
thousand times larger, what was added to the input (absolute positions) or to the projections is negligible beside it,
while what multiplies queries and keys (rotation) is not. So the large run shows the rotation alone, the ordinary run
everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Array
from toposcope.live.module import inside
from toposcope.live.module.inside import Mask, Split, TurningPairs, size
from toposcope.live.module.runner import Runner, WatchedRun, visible

SHIFTS = (1, 7, 100, 1000)
Function = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class OutputChanges:
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


def probe_outputs(run: Runner, x_BND: Array, rng: np.random.Generator, *, causal: bool | None) -> OutputChanges:
    """Run all probes of outputs on random tokens `x_BND`."""
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
    return OutputChanges(
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


# ------------------------------------------------------------------ inside
@dataclass(frozen=True, eq=False)
class Observation:
    """What was seen inside the module; parts are None where it could not be seen. Relative to the logits' size.

    `large` splits q k^T on the large token, `large_evened` the same with queries and keys at length 1, and `ordinary`
    splits it on an ordinary token. `bias` splits what is added to the product. `logits` stands in for all of them
    where only the logits are known.
    """

    source: str  # where q, k and logits come from: "watched", "given", "nothing"
    visible_NN: Mask | None = None
    batch: float = 0.0
    q_turning: float | None = None
    k_turning: float | None = None
    stretching: float = 0.0
    large: Split | None = None
    large_evened: Split | None = None
    ordinary: Split | None = None
    bias: Split | None = None
    logits_large: Split | None = None
    logits_ordinary: Split | None = None
    q_turns: TurningPairs | None = None
    k_turns: TurningPairs | None = None
    q_start: int | None = None
    k_start: int | None = None
    attentions: int = 0
    extra_keys: bool = False


def probe_inside(
    run: Runner, x_BND: Array, *, qk: Function | None, logits: Function | None, rng: np.random.Generator
) -> Observation:
    """Watch the module (or ask the user's functions) on one token everywhere, ordinary and large."""
    large = 1e4
    # no entry of the token is near zero, so no channel is silent
    token_D = rng.choice([-1.0, 1.0], x_BND.shape[2]) * rng.uniform(0.5, 1.5, x_BND.shape[2])
    same_BND = np.broadcast_to(token_D, x_BND.shape).copy()
    several_BND = np.broadcast_to(rng.standard_normal((len(x_BND), 1, x_BND.shape[2])), x_BND.shape).copy()

    mixed = _seen(run, x_BND, qk, logits)
    same = _seen(run, same_BND, qk, logits)
    if mixed.logits_BHNN is None and mixed.q_BHNR is None:
        return Observation("nothing", extra_keys=mixed.extra_keys)
    big = _seen(run, large * same_BND, qk, logits, keep_maps=True)
    n = x_BND.shape[1]
    sees_NN = np.ones((n, n), dtype=bool) if mixed.logits_BHNN is None else visible(mixed.logits_BHNN)
    parts: dict[str, Any] = {
        "source": "watched" if qk is None and logits is None else "given",
        "visible_NN": sees_NN,
        "attentions": mixed.softmaxes,
        "extra_keys": mixed.extra_keys,
    }
    if big.logits_BHNN is not None and same.logits_BHNN is not None:
        parts["logits_large"] = _relative(big.logits_BHNN[0], sees_NN)
        parts["logits_ordinary"] = _relative(same.logits_BHNN[0], sees_NN, inside.split_but_rows)
        parts["batch"] = inside.batch_spread(np.where(sees_NN, big.logits_BHNN, 0.0))
    if big.q_BHNR is not None and big.k_BHNR is not None and same.q_BHNR is not None and same.k_BHNR is not None:
        several = _seen(run, large * several_BND, qk, logits)
        parts.update(_queries_and_keys(mixed, same, big, several, sees_NN))
    return Observation(**parts)


def _queries_and_keys(
    mixed: WatchedRun, same: WatchedRun, big: WatchedRun, several: WatchedRun, sees_NN: Mask
) -> dict[str, Any]:
    q, k = big.q_BHNR, big.k_BHNR
    if q is None or k is None or same.q_BHNR is None or same.k_BHNR is None:
        return {}
    spread = max(inside.batch_spread(q), inside.batch_spread(k))
    folded = max(inside.batch_spread(inside.heads_first(q)), inside.batch_spread(inside.heads_first(k)))
    if folded < 1e-3 < spread:  # the batch stands behind the heads
        q, k, spread = inside.heads_first(q), inside.heads_first(k), folded
    scale = inside.size(np.linalg.norm(q, axis=-1)) * inside.size(np.linalg.norm(k, axis=-1))
    parts: dict[str, Any] = {
        "batch": spread,
        "q_turning": inside.turning(q[:1]),
        "k_turning": inside.turning(k[:1]),
        "stretching": max(inside.stretching(q[:1]), inside.stretching(k[:1])),
        "large": _scaled(inside.split(inside.product(q, k)[0], sees_NN), scale),
        "large_evened": inside.split(inside.product(inside.directions(q), inside.directions(k))[0], sees_NN),
    }
    ordinary_scale = inside.size(np.linalg.norm(same.q_BHNR, axis=-1)) * inside.size(
        np.linalg.norm(same.k_BHNR, axis=-1)
    )
    ordinary = inside.split(inside.product(same.q_BHNR, same.k_BHNR)[0], sees_NN)
    parts["ordinary"] = _scaled(ordinary, ordinary_scale)
    parts["bias"] = _bias(mixed, same, sees_NN)
    if several.q_BHNR is not None and several.k_BHNR is not None:
        parts["q_turns"] = inside.find_turns(several.q_BHNR)
        parts["k_turns"] = inside.find_turns(several.k_BHNR)
    for side, vectors in (("q", q), ("k", k)):
        turns = parts.get(f"{side}_turns")
        if turns is not None and big.maps:
            parts[f"{side}_start"] = inside.starting_position(vectors[0, 0], turns, big.maps, vectors.shape[2])
    return parts


def _bias(mixed: WatchedRun, same: WatchedRun, sees_NN: Mask) -> Split | None:
    """Split logits - s q k^T, with s from how the logits of two inputs differ; None where they are not so related."""
    if mixed.logits_BHNN is None or same.logits_BHNN is None:
        return None
    if mixed.q_BHNR is None or mixed.k_BHNR is None or same.q_BHNR is None or same.k_BHNR is None:
        return None
    mixed_product = inside.product(mixed.q_BHNR, mixed.k_BHNR)
    same_product = inside.product(same.q_BHNR, same.k_BHNR)
    change = mixed.logits_BHNN[..., sees_NN] - same.logits_BHNN[..., sees_NN]
    by_product = mixed_product[..., sees_NN] - same_product[..., sees_NN]
    s = float((change * by_product).sum() / max(float((by_product**2).sum()), 1e-300))
    if inside.size(change - s * by_product) > 1e-3 * inside.size(change):
        return None
    added = np.where(sees_NN, same.logits_BHNN, 0.0)[0] - s * same_product[0]
    scale = inside.size(mixed.logits_BHNN[..., sees_NN])
    return _scaled(inside.split_but_rows(added, sees_NN), scale)


def _seen(
    run: Runner, x_BND: Array, qk: Function | None, logits: Function | None, *, keep_maps: bool = False
) -> WatchedRun:
    if qk is None and logits is None:
        return run.watched(x_BND, keep_maps=keep_maps)[1]
    watched = run.watched(x_BND, keep_maps=True)[1] if keep_maps else WatchedRun()
    q, k = (None, None) if qk is None else run.given(qk, x_BND)
    if q is not None and k is not None and q.shape[1] != k.shape[1]:  # grouped keys
        k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    table = None if logits is None else run.given(logits, x_BND)
    return WatchedRun(q, k, table, watched.maps, 1)


def _relative(logits_HNN: Array, sees_NN: Mask, take_apart: Callable[[Array, Mask], Split] = inside.split) -> Split:
    return _scaled(take_apart(logits_HNN, sees_NN), inside.size(logits_HNN[:, sees_NN]))


def _scaled(parts: Split, scale: float) -> Split:
    by = 1.0 / scale if scale > 0 else 0.0
    return Split(parts.total * by, parts.by_offset * by, parts.rest * by, parts.within_rows * by, parts.off_sums * by)
