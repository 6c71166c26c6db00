"""A batch without its padding: one list of tokens for norms, projections and MLPs, rectangles for attention only.

The same scores and gradients as the padded batch. For attention, sentences share the rows of one rectangle, several
to a row, each seeing itself alone. Where position is a bias of the logits, whose table serves all sentences that
begin at the first column, they are instead sorted by length and taken in a few rectangles, a row each.
Shape suffixes as in `model.py`, and T tokens of all sentences, S sentences, W a token's row.
"""

# mypy: allow-subclassing-any
# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from toposcope.lab.batches import parts
from toposcope.lab.model import Transformer
from toposcope.lab.tasks import Batch

PASS_TOKENS = 16384


@dataclass(frozen=True, eq=False)
class PackedGroup:
    """Sentences that attend together, in rows of `length` cells. `cells_T` is where their tokens lie."""

    rows: int
    length: int
    tokens: int
    cells_T: Tensor | None  # None: every cell holds a token
    mask: Tensor | None
    at_BN: Tensor | None = None  # position in the sentence; None: the column


@dataclass(frozen=True, eq=False)
class Packed:
    """All tokens of a batch in one row, sentence after sentence; labels and lengths are in that order too."""

    ids_T: Tensor
    place_T: Tensor
    sentence_T: Tensor
    lengths_S: Tensor
    labels: Tensor
    groups: tuple[PackedGroup, ...]


def passes_worth(batch: int, length: int) -> int:
    """In how many passes a batch is taken, so that what the backward pass needs stays small."""
    return max(1, batch * length // PASS_TOKENS)


def scored(model: Transformer, batch: Batch, groups: int) -> tuple[Tensor, Tensor]:
    """The scores of a batch and the labels they belong to, in the same order; packed unless padding is to be seen."""
    if model.sees_padding:
        return model(batch.ids_BN, batch.lengths_B), batch.labels
    biased = any(layer.attention.position.biased for layer in model.layers)
    packed = pack(batch, groups, causal=model.config.causal) if biased else share(batch, causal=model.config.causal)
    return packed_scores(model, packed), packed.labels


def pack(batch: Batch, groups: int, *, causal: bool = False) -> Packed:
    """The batch packed, its sentences in so many groups of like length, each in a row of its own."""
    cut, made = list(parts(batch, groups)), []
    for part in cut:
        inside_BN = _inside(part)
        count, length = inside_BN.shape
        tokens = int(inside_BN.sum())
        full = tokens == count * length
        cells_T = None if full else inside_BN.flatten().nonzero().squeeze(1)
        made.append(
            PackedGroup(count, length, tokens, cells_T, None if full or causal else inside_BN[:, None, None, :])
        )
    return _listed(cut, made)


def share(batch: Batch, *, causal: bool = False) -> Packed:
    """The batch packed, its sentences sharing rows as long as the longest."""
    length = int(batch.lengths_B.max())
    rows = fitted(batch.lengths_B.tolist(), length)
    there = batch.ids_BN.device
    order_S = torch.tensor([number for row in rows for number in row], device=there)
    row_S = torch.tensor([number for number, row in enumerate(rows) for _ in row], device=there)
    packed = _listed([Batch(batch.ids_BN[order_S], batch.lengths_B[order_S], batch.labels[order_S])], [])
    if len(rows) == len(order_S) and len(packed.ids_T) == len(rows) * length:  # as many full rows as sentences
        return replace(packed, groups=(PackedGroup(len(rows), length, len(packed.ids_T), None, None),))
    before_S = packed.lengths_S.cumsum(0) - packed.lengths_S
    column_S = before_S - before_S[torch.searchsorted(row_S, row_S)]  # where a sentence begins in its row
    cells_T = (row_S * length + column_S)[packed.sentence_T] + packed.place_T
    at_C = cells_T.new_zeros(len(rows) * length).index_copy_(0, cells_T, packed.place_T)
    sentence_BN = torch.full_like(at_C, -1).index_copy_(0, cells_T, packed.sentence_T).unflatten(0, (-1, length))
    seen_BNN = sentence_BN[:, :, None] == sentence_BN[:, None, :]  # unused cells see each other: nothing sees nothing
    mask = (seen_BNN.tril() if causal else seen_BNN)[:, None]
    group = PackedGroup(len(rows), length, len(cells_T), cells_T, mask, at_C.unflatten(0, (-1, length)))
    return replace(packed, groups=(group,))


def fitted(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which sentences share a row of `room` cells: the longest first, each into the fullest row that takes it."""
    rows: list[list[int]] = []
    with_left: list[list[int]] = [[] for _ in range(room + 1)]  # rows by the cells they have left
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        need = lengths[number]
        left = next((some for some in range(need, room + 1) if with_left[some]), None)
        if left is None:
            rows.append([])
            with_left[room].append(len(rows) - 1)
            left = room
        row = with_left[left].pop()
        rows[row].append(number)
        with_left[left - need].append(row)
    return rows


def _listed(batches: Sequence[Batch], groups: Sequence[PackedGroup]) -> Packed:
    """The tokens of batches, one after the other."""
    ids, places, labels = [], [], []
    for batch in batches:
        inside_BN = _inside(batch)
        count, length = inside_BN.shape
        ids.append(batch.ids_BN[inside_BN])
        places.append(torch.arange(length, device=inside_BN.device).expand(count, -1)[inside_BN])
        labels.append(batch.labels if batch.labels.ndim == 1 else batch.labels[inside_BN])
    lengths_S = torch.cat([batch.lengths_B for batch in batches])
    sentence_T = torch.arange(len(lengths_S), device=lengths_S.device).repeat_interleave(lengths_S)
    return Packed(torch.cat(ids), torch.cat(places), sentence_T, lengths_S, torch.cat(labels), tuple(groups))


def _inside(batch: Batch) -> Tensor:
    return torch.arange(batch.ids_BN.shape[1], device=batch.ids_BN.device) < batch.lengths_B[:, None]


def packed_scores(model: Transformer, packed: Packed) -> Tensor:
    """The model's scores: (S, C), or (T, C) for a task that is read at every token."""
    x_TD = model.embed(packed.ids_T)
    if model.position is not None:
        x_TD = x_TD + model.position(int(packed.lengths_S.max()))[packed.place_T]
    raw_TD = x_TD if model.raw else None
    tokens = [group.tokens for group in packed.groups]
    for layer in model.running:
        attention = layer.attention
        flat_TW = attention.flat(layer.attention_norm(x_TD), raw_TD)
        mixed = [
            gathered(attention.by_head(spread(rows_TW, group), group.mask, group.at_BN).flatten(2), group)
            for rows_TW, group in zip(flat_TW.split(tokens), packed.groups, strict=True)
        ]
        x_TD = layer.after(x_TD, attention.o_proj(torch.cat(mixed) if len(mixed) > 1 else mixed[0]))
    x_TD = model.norm(x_TD)
    if model.config.reads == "token":
        return model.head(x_TD)
    sums_SD = x_TD.new_zeros(len(packed.lengths_S), x_TD.shape[1]).index_add(0, packed.sentence_T, x_TD)
    return model.head(sums_SD / packed.lengths_S[:, None])


def spread(rows_TW: Tensor, group: PackedGroup) -> Tensor:
    """Tokens laid out in the group's rectangle (B, N, W), zeros where there is padding."""
    if group.cells_T is not None:
        rows_TW = _Spread.apply(rows_TW, group.cells_T, group.rows * group.length)
    return rows_TW.unflatten(0, (-1, group.length))


def gathered(x_BNW: Tensor, group: PackedGroup) -> Tensor:
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
