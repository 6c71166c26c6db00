"""Which letter stands just before the mark? One head that looks one token back solves it.

Letters are uniform and independent; one place but the first, drawn uniformly, holds the mark instead. The question is
asked at the mark. Without position only the multiset of the length-1 letters is known, and all their orders are
equally likely: the commonest letter is the best guess, right with probability E[largest count] / (length - 1).
Causally the task is as natural: the answer lies before the mark.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from toposcope.lab.tasks.guessing import share_of_mode
from toposcope.lab.tasks.task import Batch, Sizes, Task, asked_at, require, stretched

if TYPE_CHECKING:
    import torch

MARK = 1


@dataclass(frozen=True, kw_only=True)
class Previous(Task):
    """Ids: 1 = the mark, letters 2 .. vocabulary-1. Label: the letter, counted from 0, asked at the mark."""

    name = "previous"
    summary = "Which letter stands just before the mark?"
    position_sensitive = True
    reads = "token"
    profiles: ClassVar[Sizes] = {
        "laptop-s": {"length": 32, "vocabulary": 64},
        "laptop-m": {"length": 48, "vocabulary": 64},
        "paper": {"length": 128, "vocabulary": 574},
    }

    def __post_init__(self) -> None:
        require(self.length >= 3, f"previous needs 3 tokens at least: with 2 only one letter is there, got {self}.")
        require(self.vocabulary >= 4, f"previous needs two letters beside padding and mark, got {self}.")

    @property
    def answers(self) -> range:
        return range(MARK + 1, self.vocabulary)

    def generate(self, count: int, generator: torch.Generator) -> Batch:
        import torch

        options = {"generator": generator, "device": generator.device}
        ids_BN = torch.randint(self.answers.start, self.answers.stop, (count, self.length), **options)
        mark_B1 = torch.randint(1, self.length, (count, 1), **options)
        labels_B1 = ids_BN.gather(1, mark_B1 - 1) - self.answers.start
        ids_BN.scatter_(1, mark_B1, MARK)
        lengths_B = torch.full_like(mark_B1.squeeze(1), self.length)
        return Batch(ids_BN, lengths_B, asked_at(mark_B1, labels_B1, self.length))

    def longer(self, factor: float) -> Self:
        return replace(self, length=stretched(self.length, factor))

    @property
    def without_position(self) -> float:
        """E[largest count] / (length - 1)."""
        return share_of_mode(self.length - 1, len(self.answers))
