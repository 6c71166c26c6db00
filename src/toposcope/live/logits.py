"""The scale and the bias of a running model's logits: one pass of a few short texts, attention written out.

Differences between texts leave the scale alone, since a bias is the same for all of them. A last text, of small
content, shows the bias: beside large products half precision would swamp it.
Shapes: B texts, H heads, N tokens, R head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.encodings.record import Array
from toposcope.live.content import given_content
from toposcope.live.inputs import AddedInput, added_input, watched_input
from toposcope.live.running import Running
from toposcope.live.watch import WatchedAttention

TEXTS, TOKENS = 3, 24
SMALL = 1e-2
_HIDDEN = -1e3  # logits below that are masked


@dataclass(frozen=True, eq=False)
class SeenLogits:
    """What makes logits of products: l = s q k + b, or cap * tanh of that.

    `scale` is None where no number explains them; `misfit` is how far they are from it, relative to their size.
    `bias_HNN` is NaN where a key is hidden; `noise` what rounding may make of a bias.
    `turns` says that queries of one content differ between positions of a text.
    """

    scale: float | None
    misfit: float = 0.0
    softcap: float | None = None
    bias_HNN: Array | None = None
    noise: float = 0.0
    turns: bool = False

    def by_offset(self) -> tuple[Array, float] | None:
        """The bias by offset i - j (H, 2N - 1; NaN where none was seen), and how much of it is not by offset."""
        if self.bias_HNN is None:
            return None
        n = self.bias_HNN.shape[-1]
        table_HT = np.full((len(self.bias_HNN), 2 * n - 1), np.nan)
        rest = 0.0
        for offset in range(1 - n, n):
            along_HK = np.diagonal(self.bias_HNN, -offset, axis1=1, axis2=2)
            seen = np.isfinite(along_HK).all(axis=0)
            if seen.any():
                table_HT[:, offset + n - 1] = along_HK[:, seen].mean(axis=1)
                rest = max(rest, float(np.ptp(along_HK[:, seen], axis=1).max()))
        return table_HT, rest


def logits_and_input(
    running: Running, attending: frozenset[str], *, seed: int = 0
) -> tuple[list[SeenLogits], tuple[AddedInput, ...]]:
    """Scale and bias of every attention in the order of running, and what position adds to each stack's input."""
    tokens = max(min(TOKENS, running.context), 2)
    rows = TEXTS + 1
    numbers = np.arange(rows * tokens).reshape(rows, tokens)
    numbers[-1] = numbers[-1, 0]  # the last text repeats one small content
    ids = running.tokens(rows, seed + 1)[:, None].repeat(1, tokens)
    sizes = [1.0] * TEXTS + [SMALL]
    with (
        running.failing_as_told(),
        running.written_out(),
        watched_input(running, attending) as entered,
        given_content(running.model, attending, numbers, sizes=sizes, seed=seed + 3),
    ):
        seen = running.attentions(ids)
    inputs = tuple(
        added_input(module, stack, _array(x)) for module, stack, x in entered if x.shape[:2] == (rows, tokens)
    )
    return [_logits(each, rows) for each in seen], inputs


def _logits(seen: WatchedAttention, rows: int) -> SeenLogits:
    query, key = (_by_text(each, rows) for each in (seen.query_BHNR, seen.key_BGMR))
    if query is None or key is None:
        return SeenLogits(None)
    turns = _turns(query, _rounding(seen.query_BHNR.dtype))
    if seen.logits_BHNM is None:
        return SeenLogits(seen.scale, bias_HNN=_told_bias(seen.added, query.shape), turns=turns)
    logits = _by_text(seen.logits_BHNM, rows)
    if logits is None or query.shape[1] % key.shape[1] or query.shape[2] != key.shape[2]:
        return SeenLogits(None, turns=turns)
    product = query @ np.repeat(key, query.shape[1] // key.shape[1], axis=1).swapaxes(2, 3)
    if product.shape != logits.shape or not np.isfinite(product).all():
        return SeenLogits(None, turns=turns)
    return _explained(product, logits, _rounding(seen.logits_BHNM.dtype), turns)


def _explained(product_BHNN: Array, logits_BHNN: Array, rounding: float, turns: bool) -> SeenLogits:
    visible_NN: NDArray[np.bool_] = np.all(logits_BHNN > _HIDDEN, axis=(0, 1))
    if not visible_NN.any():
        return SeenLogits(None, turns=turns)
    logits_BHNN = np.where(visible_NN, logits_BHNN, 0.0)  # masks are minus infinity
    scale, misfit = _scale(product_BHNN[:-1], logits_BHNN[:-1], visible_NN)
    cap = None
    if misfit > 0.02:
        cap, capped_scale, capped_misfit = _softcap(product_BHNN[:-1], logits_BHNN[:-1], visible_NN)
        if capped_misfit > 0.1 * misfit:
            return SeenLogits(None if misfit > 0.05 else scale, misfit, turns=turns)
        scale, misfit = capped_scale, capped_misfit
    raw_HNN = logits_BHNN[-1] if cap is None else cap * np.arctanh(np.clip(logits_BHNN[-1] / cap, -0.999, 0.999))
    bias_HNN = np.where(visible_NN, raw_HNN - scale * product_BHNN[-1], np.nan)
    largest = float(np.abs(np.where(visible_NN, logits_BHNN[-1], 0.0)).max())
    return SeenLogits(scale, misfit, cap, bias_HNN, 4 * rounding * largest, turns)


def _scale(product: Array, logits: Array, visible_NN: NDArray[np.bool_]) -> tuple[float, float]:
    """The scale by differences between texts, and the largest of what it leaves, relative to them.

    What is constant along a row is left out: a softmax does not see it, and some models take out the row's largest.
    """
    by_product = _but_rows(product[1:] - product[:1], visible_NN)[..., visible_NN]
    by_logits = _but_rows(logits[1:] - logits[:1], visible_NN)[..., visible_NN]
    scale = float((by_product * by_logits).sum() / max(float((by_product**2).sum()), 1e-300))
    largest = max(float(np.abs(by_logits).max()), 1e-300)
    return scale, float(np.abs(by_logits - scale * by_product).max()) / largest


def _but_rows(table: Array, visible_NN: NDArray[np.bool_]) -> Array:
    count_N1 = np.maximum(visible_NN.sum(axis=-1, keepdims=True), 1)
    shown = np.where(visible_NN, table, 0.0)
    return np.asarray(shown - shown.sum(axis=-1, keepdims=True) / count_N1)


def _softcap(product: Array, logits: Array, visible_NN: NDArray[np.bool_]) -> tuple[float, float, float]:
    """The cap under which the logits are best explained, the scale there, and what is left."""
    largest = float(np.abs(np.where(visible_NN, logits, 0.0)).max())
    found = (np.inf, 0.0, np.inf)
    low, high = np.log(1.0005), np.log(100.0)
    for _ in range(4):  # finer each time
        for step in np.linspace(low, high, 25):
            cap = largest * float(np.exp(step))
            opened = cap * np.arctanh(np.clip(logits / cap, -0.999999, 0.999999))
            scale, misfit = _scale(product, opened, visible_NN)
            if misfit < found[2]:
                found, at = (cap, scale, misfit), step
        wide = (high - low) / 24
        low, high = max(at - wide, 1e-6), at + wide
    return found


def _turns(query_BHNR: Array, rounding: float) -> bool:
    last = query_BHNR[-1]
    size = float(np.sqrt((last[:, :1] ** 2).mean())) or 1.0
    return bool(np.abs(last - last[:, :1]).max() > 400 * rounding * size)


def _told_bias(added: Any, shape: tuple[int, ...]) -> Array | None:
    """What the fused attention was told to add, where that is numbers: (H, N, N)."""
    if added is None or not added.is_floating_point():
        return None
    table = np.broadcast_to(_array(added), (*shape[:2], shape[2], added.shape[-1]))[-1]
    return np.where(table > _HIDDEN, table, np.nan)


def _by_text(tensor: Any, rows: int) -> Array | None:
    if tensor.shape[0] % rows:
        return None
    return _array(tensor).reshape(rows, -1, *tensor.shape[-2:])


def _rounding(dtype: Any) -> float:
    import torch

    return float(torch.finfo(dtype).eps) / 2


def _array(tensor: Any) -> Array:
    import torch

    array: Array = tensor.detach().cpu().to(torch.float64).numpy()
    return array
