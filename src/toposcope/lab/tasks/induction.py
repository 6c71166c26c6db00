"""What followed this letter the last time? The task of induction heads.

A prefix of length-1 different letters in random order, then one of them again, drawn uniformly from all but the last
of the prefix. Asked at this last token: the letter that followed its earlier occurrence. The letters differ, so there
is one right answer. Only the last token is asked: were the prefix repeated further, a bidirectional model could read
the answer one token ahead instead of one round back.

Without position the repeated letter is known and the length-2 others of the prefix are equally likely to follow it:
1 / (length - 2). Causally the task is at home.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from toposcope.lab.tasks.task import Batch, Sizes, Task, asked_at, require, stretched

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Induction(Task):
    """Ids: letters 1 .. vocabulary-1. Label: the letter, counted from 0, asked at the last token."""

    name = "induction"
    summary = "What followed this letter when it stood here before?"
    position_sensitive = True
    reads = "token"
    profiles: ClassVar[Sizes] = {
        "laptop-s": {"length": 32, "vocabulary": 128},
        "laptop-m": {"length": 48, "vocabulary": 192},
        "paper": {"length": 128, "vocabulary": 574},
    }

    def __post_init__(self) -> None:
        require(self.length >= 4, f"induction needs three letters and one repeated at least, got {self}.")
        require(
            self.vocabulary >= self.length,
            f"induction of {self.length} tokens needs {self.length - 1} different letters and the padding, "
            f"but the vocabulary is {self.vocabulary}. Give a larger vocabulary or a shorter length.",
        )

    @property
    def answers(self) -> range:
        return range(1, self.vocabulary)

    def generate(self, count: int, generator: torch.Generator) -> Batch:
        import torch

        options = {"generator": generator, "device": generator.device}
        shuffled_BC = torch.rand((count, self.classes), dtype=torch.float64, **options).argsort(1) + 1
        prefix_BM = shuffled_BC[:, : self.length - 1]
        again_B1 = torch.randint(0, self.length - 2, (count, 1), **options)
        ids_BN = torch.cat([prefix_BM, prefix_BM.gather(1, again_B1)], 1)
        labels_B1 = prefix_BM.gather(1, again_B1 + 1) - self.answers.start
        last_B1 = torch.full_like(again_B1, self.length - 1)
        lengths_B = torch.full_like(again_B1.squeeze(1), self.length)
        return Batch(ids_BN, lengths_B, asked_at(last_B1, labels_B1, self.length))

    def longer(self, factor: float) -> Self:
        """A longer prefix of different letters; their number, and so the length, is limited by the vocabulary."""
        return replace(self, length=stretched(self.length, factor))

    @property
    def without_position(self) -> float:
        """1 / (length - 2)."""
        return 1 / (self.length - 2)
