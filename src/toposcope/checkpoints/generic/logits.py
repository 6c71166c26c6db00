"""What happens between q k^T and the probabilities: scale, cap, mask, bias, sinks; each measured, none assumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.generic.bounds import Refused
from toposcope.checkpoints.generic.record import Array

_NOISE = 2e-4  # of a logit


@dataclass(frozen=True, eq=False)
class Logits:
    """Scale, cap, mask, bias (H, N, M; each row up to a constant) and sinks (H,) of one call."""

    scale: float
    softcap: float | None
    causal: bool
    reach: int | None
    chunk: int | None
    bias_HNM: Array | None
    sinks_H: Array | None


def measured(q: Array, k: Array, p: Array, scaling: float | None, softcap: float | None) -> Logits:
    """What makes the probabilities (B, H, N, M) of queries (B, H, N, R) and keys (B, G, M, R)."""
    heads = q.shape[1]
    products = np.einsum("bhnr,bhmr->bhnm", q, np.repeat(k, heads // k.shape[1], axis=1))
    seen = p > 0
    if not (seen == seen[:1, :1]).all():
        raise Refused("a mask of its own per head" if (seen == seen[:1]).all() else "a mask that depends on content")
    visible_NM = seen[0, 0]
    causal, reach, chunk = mask_pattern(visible_NM)
    log_p = np.log(np.where(seen, p, 1))
    scale = _scale(products, log_p, visible_NM) if scaling is None else scaling
    logits = scale * products
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    bias = _bias(log_p - logits, visible_NM)
    return Logits(
        scale,
        softcap,
        causal,
        reach,
        chunk,
        bias if np.abs(bias).max() > _NOISE else None,
        _sinks(p, np.where(seen, logits + bias, -np.inf)),
    )


def mask_pattern(visible_NM: NDArray[np.bool_]) -> tuple[bool, int | None, int | None]:
    """Causal or not, the reach of a window, and the length of chunks."""
    i, j = np.indices(visible_NM.shape)
    offset = i - j
    if visible_NM.all():
        return False, None, None
    if np.array_equal(visible_NM, offset >= 0):
        return True, None, None
    for size in range(len(visible_NM)):
        near = np.abs(offset) <= size
        if np.array_equal(visible_NM, near & (offset >= 0)):
            return True, size, None
        if np.array_equal(visible_NM, near):
            return False, size, None
        if size and np.array_equal(visible_NM, (offset >= 0) & (i // size == j // size)):
            return True, None, size
    raise Refused("a mask of unknown pattern")


def _scale(products: Array, log_p: Array, visible_NM: NDArray[np.bool_]) -> float:
    """The factor from q k^T to the logits: what explains how differences between keys vary over the texts."""
    ours: list[Array] = []
    theirs: list[Array] = []
    for row in range(1, len(visible_NM)):
        keys = np.flatnonzero(visible_NM[row])
        for into, of in ((theirs, log_p), (ours, products)):
            step = of[:, :, row, keys[1:]] - of[:, :, row, keys[:1]]
            into.append((step - step.mean(0)).ravel())
    x, y = np.concatenate(ours), np.concatenate(theirs)
    scale = float(x @ y / (x @ x))
    if np.abs(y - scale * x).max() > _NOISE:
        raise Refused("the logits are more than a multiple of q.k and a bias")
    return scale


def _bias(left: Array, visible_NM: NDArray[np.bool_]) -> Array:
    """What the texts have in common in log p - logits, each row without its constant."""
    bias = np.zeros(left.shape[1:])
    for row, visible in enumerate(visible_NM):
        keys = np.flatnonzero(visible)
        step = left[:, :, row, keys] - left[:, :, row, keys[-1:]]
        if np.abs(step - step.mean(0)).max() > _NOISE:
            raise Refused("something that depends on content is added to the logits")
        bias[:, row, keys] = step.mean(0)
    return bias


def _sinks(p: Array, logits: Array) -> Array | None:
    """The constant logit per head that takes what is missing from a sum of one."""
    total = p.sum(-1)
    missing = 1 - total
    if np.abs(missing).max() <= 1e-5:
        return None
    largest = logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits - largest).sum(-1)) + largest[..., 0]
    with np.errstate(all="ignore"):
        sink = np.log(missing / total) + log_sum
    sink = np.where((missing > 3e-3) & (missing < 0.997) & np.isfinite(sink), sink, np.nan)
    sink_HS = np.moveaxis(sink, 1, 0).reshape(p.shape[1], -1)
    if (np.isfinite(sink_HS).sum(1) < 3).any():
        raise Refused("probabilities do not sum to one, by too little to see why")
    if float(np.nanmax(np.nanmax(sink_HS, 1) - np.nanmin(sink_HS, 1))) > 1e-2:
        raise Refused("probabilities do not sum to one, and no constant sink explains it")
    return np.asarray(np.nanmedian(sink_HS, axis=1))
