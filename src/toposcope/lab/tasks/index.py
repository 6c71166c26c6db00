"""Which letter stands at place k? Absolute position, asked by number.

Letters, uniform and independent, then one token that names a place k, uniform among the first `places`. Asked at this
last token: the letter at place k. Without position only the multiset of the letters is known: the commonest is right
with probability E[largest count] / (number of letters in the sentence). Causally the task is as natural.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from toposcope.lab.tasks.guessing import share_of_mode
from toposcope.lab.tasks.task import Batch, Sizes, Task, asked_at, require, stretched

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Index(Task):
    """Ids: 1 .. places name the places, letters places+1 .. vocabulary-1. Label: the letter."""

    name = "index"
    summary = "Which letter stands at the place that the last token names?"
    position_sensitive = True
    reads = "token"
    profiles: ClassVar[Sizes] = {
        "laptop-s": {"places": 31, "length": 32, "vocabulary": 64},
        "laptop-m": {"places": 47, "length": 48, "vocabulary": 96},
        "paper": {"places": 127, "length": 128, "vocabulary": 574},
    }

    places: int

    def __post_init__(self) -> None:
        require(
            2 <= self.places < self.length,
            f"index needs two places at least and a token after them that names one, got {self}.",
        )
        require(
            self.vocabulary >= self.places + 3, f"index needs two letters beside padding and place names, got {self}."
        )

    @property
    def answers(self) -> range:
        return range(self.places + 1, self.vocabulary)

    def generate(self, count: int, generator: torch.Generator) -> Batch:
        import torch

        options = {"generator": generator, "device": generator.device}
        letters_BM = torch.randint(self.answers.start, self.answers.stop, (count, self.length - 1), **options)
        place_B1 = torch.randint(1, self.places + 1, (count, 1), **options)
        labels_B1 = letters_BM.gather(1, place_B1 - 1) - self.answers.start
        last_B1 = torch.full_like(place_B1, self.length - 1)
        lengths_B = torch.full_like(place_B1.squeeze(1), self.length)
        return Batch(torch.cat([letters_BM, place_B1], 1), lengths_B, asked_at(last_B1, labels_B1, self.length))

    def longer(self, factor: float) -> Self:
        """More letters; the named places stay among the first, since only they have names."""
        return replace(self, length=stretched(self.length, factor))

    @property
    def without_position(self) -> float:
        """E[largest count] / (length - 1)."""
        return share_of_mode(self.length - 1, len(self.answers))
