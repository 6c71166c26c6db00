"""Run a module on the inputs that bring its encoding out, and gather what its queries, keys and logits do.

One token everywhere: what differs between positions is the encoding's work. The same token made ten thousand times
larger: what was added to the input (absolute positions) or to the projections is negligible beside it, while what
multiplies queries and keys (rotation) is not. So the large run shows the rotation alone, the ordinary run everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from toposcope.checks import inside
from toposcope.checks.inside import Mask, Split, Turns
from toposcope.checks.runner import Runner
from toposcope.checks.watch import Seen, visible
from toposcope.encodings.record import Array

Function = Callable[[Any, Any], Any]


@dataclass(frozen=True, eq=False)
class Sight:
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
    q_turns: Turns | None = None
    k_turns: Turns | None = None
    q_start: int | None = None
    k_start: int | None = None
    attentions: int = 0
    extra_keys: bool = False


def look(
    run: Runner, x_BND: Array, *, qk: Function | None, logits: Function | None, rng: np.random.Generator
) -> Sight:
    """Watch the module (or ask the user's functions) on one token everywhere, ordinary and large."""
    large = 1e4
    # no entry of the token is near zero, so no channel is silent
    token_D = rng.choice([-1.0, 1.0], x_BND.shape[2]) * rng.uniform(0.5, 1.5, x_BND.shape[2])
    same_BND = np.broadcast_to(token_D, x_BND.shape).copy()
    several_BND = np.broadcast_to(rng.standard_normal((len(x_BND), 1, x_BND.shape[2])), x_BND.shape).copy()

    mixed = _seen(run, x_BND, qk, logits)
    same = _seen(run, same_BND, qk, logits)
    if mixed.logits_BHNN is None and mixed.q_BHNR is None:
        return Sight("nothing", extra_keys=mixed.extra_keys)
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
    return Sight(**parts)


def _queries_and_keys(mixed: Seen, same: Seen, big: Seen, several: Seen, sees_NN: Mask) -> dict[str, Any]:
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


def _bias(mixed: Seen, same: Seen, sees_NN: Mask) -> Split | None:
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
) -> Seen:
    if qk is None and logits is None:
        return run.watched(x_BND, keep_maps=keep_maps)[1]
    watched = run.watched(x_BND, keep_maps=True)[1] if keep_maps else Seen()
    q, k = (None, None) if qk is None else run.given(qk, x_BND)
    if q is not None and k is not None and q.shape[1] != k.shape[1]:  # grouped keys
        k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    table = None if logits is None else run.given(logits, x_BND)
    return Seen(q, k, table, watched.maps, 1)


def _relative(logits_HNN: Array, sees_NN: Mask, take_apart: Callable[[Array, Mask], Split] = inside.split) -> Split:
    return _scaled(take_apart(logits_HNN, sees_NN), inside.size(logits_HNN[:, sees_NN]))


def _scaled(parts: Split, scale: float) -> Split:
    by = 1.0 / scale if scale > 0 else 0.0
    return Split(parts.total * by, parts.by_offset * by, parts.rest * by, parts.within_rows * by, parts.off_sums * by)
