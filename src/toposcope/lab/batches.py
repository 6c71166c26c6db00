"""Batches cut by length: the same gradient as the padded batch, without computing on padding."""

# mypy: allow-untyped-decorators
from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toposcope.lab.tasks import NOTHING_ASKED, Batch


def parts(batch: Batch, count: int) -> Iterator[Batch]:
    """The batch sorted by length, cut into `count` parts, each trimmed to its longest sentence."""
    longest = batch.ids_BN.shape[1]
    if count <= 1 or int(batch.lengths_B.min()) == longest:
        yield batch
        return
    for chosen in batch.lengths_B.argsort(stable=True).chunk(count):
        length = int(batch.lengths_B[chosen[-1]])
        labels = batch.labels[chosen]
        yield Batch(
            batch.ids_BN[chosen, :length],
            batch.lengths_B[chosen],
            labels if labels.ndim == 1 else labels[:, :length],
        )


def parts_worth(batch: int, length: int, width: int) -> int:
    """How many parts pay: small products are cheaper in one."""
    return max(1, min(8, batch * length * width // 65536))


def loss_sum(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy summed over what is asked."""
    return F.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), labels.reshape(-1), ignore_index=NOTHING_ASKED, reduction="sum"
    )


def asked(labels: Tensor) -> int:
    """How many labels count."""
    return int((labels != NOTHING_ASKED).sum())


def without_class_zero(batch: Batch) -> Batch:
    """The batch in which class 0 is not asked for (a quirk of the released scripts)."""
    return Batch(batch.ids_BN, batch.lengths_B, batch.labels.masked_fill(batch.labels == 0, NOTHING_ASKED))


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch, *, cuts: int = 1, size: int = 512) -> tuple[float, float]:
    """(share of the asked labels that are right, mean loss), dropout off; the model's mode is restored."""
    was_training = model.training
    model.eval()
    right, loss = 0, 0.0
    for start in range(0, len(batch.ids_BN), size):
        some = slice(start, start + size)
        for part in parts(Batch(batch.ids_BN[some], batch.lengths_B[some], batch.labels[some]), cuts):
            scores = model(part.ids_BN, part.lengths_B)
            right += int((scores.argmax(-1) == part.labels).sum())
            loss += float(loss_sum(scores, part.labels))
    model.train(was_training)
    total = max(asked(batch.labels), 1)
    return right / total, loss / total
