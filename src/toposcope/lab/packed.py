"""A batch without its padding: one list of tokens for norms, projections and MLPs, rectangles for attention only.

The same scores and gradients as the padded batch. Sentences are sorted by length; attention takes them in a few
groups, each padded to its longest. Shape suffixes as in `model.py`, and T tokens of all sentences, W a token's row.
"""

# mypy: allow-subclassing-any
# mypy: allow-untyped-calls
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toposcope.lab.batches import parts
from toposcope.lab.model import Transformer
from toposcope.lab.tasks import Batch

PASS_TOKENS = 16384


@dataclass(frozen=True, eq=False)
class Group:
    """Sentences that attend together, padded to `length`. `cells_T` is where their tokens lie in the rectangle."""

    lengths_B: Tensor
    length: int
    tokens: int
    cells_T: Tensor | None  # None: every cell holds a token
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class Packed:
    """All tokens of a batch in one row, sentence after sentence. Labels are those of the sorted sentences."""

    ids_T: Tensor
    place_T: Tensor
    labels: Tensor
    groups: tuple[Group, ...]


def passes_worth(batch: int, length: int) -> int:
    """In how many passes a batch is taken, so that what the backward pass needs stays small."""
    return max(1, batch * length // PASS_TOKENS)


def scored(model: Transformer, batch: Batch, groups: int) -> tuple[Tensor, Tensor]:
    """The scores of a batch and the labels they belong to, in the same order; packed unless padding is to be seen."""
    if model.sees_padding:
        return model(batch.ids_BN, batch.lengths_B), batch.labels
    packed = pack(batch, groups, causal=model.config.causal)
    return packed_scores(model, packed), packed.labels


def pack(batch: Batch, groups: int, *, causal: bool = False) -> Packed:
    """The batch packed, its sentences in so many groups of like length."""
    made, ids, places, labels = [], [], [], []
    for part in parts(batch, groups):
        count, length = part.ids_BN.shape
        at_N = torch.arange(length)
        inside_BN = at_N < part.lengths_B[:, None]
        cells_T = inside_BN.flatten().nonzero().squeeze(1)
        full = len(cells_T) == count * length
        ids.append(part.ids_BN.flatten()[cells_T])
        places.append(at_N.repeat(count)[cells_T])
        labels.append(part.labels if part.labels.ndim == 1 else part.labels.flatten()[cells_T])
        mask = None if full or causal else inside_BN[:, None, None, :]
        made.append(Group(part.lengths_B, length, len(cells_T), None if full else cells_T, mask))
    return Packed(torch.cat(ids), torch.cat(places), torch.cat(labels), tuple(made))


def packed_scores(model: Transformer, packed: Packed) -> Tensor:
    """The model's scores: (B, C), or (T, C) for a task that is read at every token."""
    x_TD = model.embed(packed.ids_T)
    if model.position is not None:
        x_TD = x_TD + model.position(max(group.length for group in packed.groups))[packed.place_T]
    raw_TD = x_TD if model.raw else None
    tokens = [group.tokens for group in packed.groups]
    for layer in model.layers:
        attention = layer.attention
        flat_TW = attention.flat(layer.attention_norm(x_TD), raw_TD)
        mixed = [
            gathered(attention.by_head(spread(rows_TW, group), group.mask).flatten(2), group)
            for rows_TW, group in zip(flat_TW.split(tokens), packed.groups, strict=True)
        ]
        x_TD = layer.after(x_TD, attention.o_proj(torch.cat(mixed) if len(mixed) > 1 else mixed[0]))
    x_TD = model.norm(x_TD)
    if model.config.reads == "token":
        return model.head(x_TD)
    means = [
        spread(rows_TD, group).sum(dim=1) / group.lengths_B[:, None]
        for rows_TD, group in zip(x_TD.split(tokens), packed.groups, strict=True)
    ]
    return model.head(torch.cat(means))


def spread(rows_TW: Tensor, group: Group) -> Tensor:
    """Tokens laid out in the group's rectangle (B, N, W), zeros where there is padding."""
    if group.cells_T is not None:
        rows_TW = _Spread.apply(rows_TW, group.cells_T, len(group.lengths_B) * group.length)
    return rows_TW.unflatten(0, (-1, group.length))


def gathered(x_BNW: Tensor, group: Group) -> Tensor:
    """The tokens of such a rectangle, one after the other."""
    cells = x_BNW.flatten(0, 1)
    return cells if group.cells_T is None else _Gather.apply(cells, group.cells_T)


class _Spread(torch.autograd.Function):
    """Rows to places of their own in a larger array; its gradient gathers, and the other way round."""

    @staticmethod
    def forward(ctx: Any, rows_TW: Tensor, cells_T: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(cells_T)
        return rows_TW.new_zeros(size, rows_TW.shape[1]).index_copy_(0, cells_T, rows_TW)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Gather.apply(grads[0], ctx.saved_tensors[0]), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cells_CW: Tensor, cells_T: Tensor) -> Tensor:
        ctx.save_for_backward(cells_T)
        ctx.size = len(cells_CW)
        return cells_CW.index_select(0, cells_T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(grads[0], ctx.saved_tensors[0], ctx.size), None
