"""Attention under the tables of an encoding, in torch: queries and keys turned to their places, biases on the logits.

All of it is computed in float32 or better, whatever the model's precision; what leaves is rounded to it once.
Positions are rows (B or 1, N); M keys need not be the N queries: with a cache they are all that came before as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue
from toposcope.core.memory import require_memory
from toposcope.encodings import LogitBias, Rotary
from toposcope.models.instrument import Call
from toposcope.models.positions import Array, Places

LARGEST = 80.0  # of an exponent: e^88 is the end of float32


def turn(
    x_BHNR: Any,
    rotary: Rotary,
    at_BN: Array,
    side: Any,
    frequencies: Array,
    *,
    back: bool = False,
    origin: float = 0.0,
) -> Any:
    """Turn torch vectors to their positions by these frequencies of a rotation (or back), in the precision they have.

    Frequencies are (F,), or (B, N, F) where they differ between positions. Decays are counted from `origin`, which
    must be the same for queries and keys.
    """
    import torch

    angle_BNF = at_BN[..., None] * frequencies * (-1.0 if back else 1.0)
    size_BNF = np.full_like(angle_BNF, 1 / rotary.attention_factor if back else rotary.attention_factor)
    if rotary.decay_F is not None:
        sign = (-1.0 if side == "query" else 1.0) * (-1.0 if back else 1.0)
        exponent_BNF = sign * (at_BN - origin)[..., None] * rotary.decay_F
        if np.abs(exponent_BNF).max() > LARGEST:
            raise BadValue(
                f"over {int(np.ptp(at_BN)) + 1} tokens the decay of this encoding leaves the range of float32. Use a "
                "shorter text, or a slower decay (xpos: a larger scale_base)."
            )
        size_BNF = size_BNF * np.exp(exponent_BNF)
    cos, sin = (there(part * size_BNF, x_BHNR)[:, None] for part in (np.cos(angle_BNF), np.sin(angle_BNF)))
    first, second = (
        torch.from_numpy(np.ascontiguousarray(rotary.pairs_F2[:, side_])).to(x_BHNR.device) for side_ in (0, 1)
    )
    a, b = x_BHNR[..., first], x_BHNR[..., second]
    turned = x_BHNR.clone()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = a * sin + b * cos
    return turned


def middle(*places: Places) -> float:
    """A position in the middle of all, from which decays are counted: farthest from both ends of a float's range."""
    ends = [rows for each in places for rows in (each.text_BM.min(), each.text_BM.max())]
    return float(np.round((min(ends) + max(ends)) / 2))


def attend(
    call: Call, q: Any, k: Any, v: Any, bias: LogitBias | None, heads: Sequence[int], at: Sequence[Places]
) -> Any:
    """The heads' outputs (B, N, H, V); with a bias or sinks one head at a time, so that one table is in memory."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    count, (queries, keys) = q.shape[2], at
    if call.causal and k.shape[2] > count:  # a cache of fixed size, still empty: behind the queries it holds nothing
        k, v, keys = k[:, :, :count], v[:, :, :count], keys.cut(slice(count))
    hidden = _hidden(call, q)
    if bias is None and call.bias is None and call.softcap is None and call.sinks is None:
        out = scaled_dot_product_attention(q, k, v, attn_mask=hidden, is_causal=call.causal, scale=call.scaling)
        return out.transpose(1, 2).contiguous()
    if call.causal:
        hidden = q.new_full((1, 1, count, count), torch.finfo(q.dtype).min).triu(1)
    new = None if bias is None else bias_tables(bias, queries.text_BM, keys.text_BM, q)
    outputs = []
    for head in range(q.shape[1]):
        logits = q[:, head] @ k[:, head].transpose(1, 2) * call.scaling
        if head in heads and new is not None:
            logits = logits + new(head)
        elif head not in heads and call.bias is not None:
            logits = logits + call.bias[:, min(head, call.bias.shape[1] - 1), :, : k.shape[2]].to(logits)
        if call.softcap is not None:
            logits = torch.tanh(logits / call.softcap) * call.softcap
        if hidden is not None:
            logits = logits + hidden[:, min(head, hidden.shape[1] - 1)]
        if call.sinks is not None:  # one more key, that has no value
            sink = call.sinks[head].to(logits).expand(*logits.shape[:-1], 1)
            logits = torch.cat([logits, sink], dim=-1)
        outputs.append(torch.softmax(logits, dim=-1)[..., : k.shape[2]] @ v[:, head])
    return torch.stack(outputs, dim=2)


def _hidden(call: Call, q: Any) -> Any | None:
    """What is added to the logits to hide keys (B, H, N, M); None: all keys, or all past ones, are seen."""
    import torch

    if call.mask is None:
        return None
    if call.mask.dtype == torch.bool:
        return torch.zeros_like(call.mask, dtype=q.dtype).masked_fill(~call.mask, torch.finfo(q.dtype).min)
    return call.mask.to(q.dtype)


def bias_tables(bias: LogitBias, at_BN: Array, at_BM: Array, like: Any) -> Callable[[int], Any]:
    """A function head -> table (B or 1, N, M) like that tensor; of a Toeplitz bias one row of offsets is kept."""
    import torch

    if not bias.toeplitz or not all((rows == np.round(rows)).all() for rows in (at_BN, at_BM)):
        rows = max(len(at_BN), len(at_BM))
        require_memory(
            8 * rows * bias.heads * at_BN.shape[1] * at_BM.shape[1],
            f"the biases of {bias.heads} heads for {rows} times {at_BM.shape[1]} tokens",
            "Give fewer sequences at once, or fewer tokens.",
        )
        pairs = zip(_repeated(at_BN, rows), _repeated(at_BM, rows), strict=True)
        table_BHNM = there(np.stack([bias.table(at_N, at_M) for at_N, at_M in pairs]), like)
        return lambda head: table_BHNM[:, head]
    least, most = int(at_BN.min() - at_BM.max()), int(at_BN.max() - at_BM.min())
    row_HT = there(bias.by_offset(np.arange(least, most + 1)), like)
    if len(at_BN) == len(at_BM) == 1 and all((np.diff(rows) == 1).all() for rows in (at_BN, at_BM)):
        return lambda head: _toeplitz(row_HT[head], at_BM.shape[1])[None]
    offset_BNM = torch.from_numpy((at_BN[:, :, None] - at_BM[:, None, :]).astype(np.int64) - least).to(like.device)
    return lambda head: row_HT[head][offset_BNM]


def there(numbers: Array, like: Any) -> Any:
    """Numbers of ours as a tensor where and as another is; rounded first, since not every device has float64."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(numbers)).to(like.dtype).to(like.device)


def _toeplitz(row_T: Any, keys: int) -> Any:
    """T[i, j] = row[i - j + m - 1] for m keys: a strided view of the reversed row, one step back for each row."""
    return row_T.flip(0).unfold(0, keys, 1).flip(0)


def _repeated(rows_BN: Array, count: int) -> NDArray[np.float64]:
    return np.broadcast_to(rows_BN, (count, rows_BN.shape[1]))
