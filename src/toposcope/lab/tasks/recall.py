"""Write the letters again, in order or from the end.

The first half of a sentence is letters, uniform and independent; the second half is blanks. `copy` asks at the i-th
blank for the i-th letter, `reverse` for the i-th from the end. The blanks are all the same token, so a model without
position answers the same at each, and the commonest letter is the best: right with probability
E[largest count] / (length / 2). Causally the tasks are as natural: the letters come first. (A language model that
copies also reads what it wrote; here the blanks give nothing away, so position alone must lead back.)

Copying looks back a constant distance, which suits relative encodings; reversing, one that differs at every blank.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self, final

from toposcope.lab.tasks.guessing import share_of_mode
from toposcope.lab.tasks.task import NOTHING_ASKED, Batch, Sizes, Task, require, stretched

if TYPE_CHECKING:
    import torch

BLANK = 1


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """Ids: 1 = blank, letters 2 .. vocabulary-1. Label: the letter, counted from 0, asked at every blank."""

    position_sensitive = True
    reads = "token"
    profiles: ClassVar[Sizes] = {
        "laptop-s": {"length": 32, "vocabulary": 64},
        "laptop-m": {"length": 48, "vocabulary": 64},
        "paper": {"length": 128, "vocabulary": 574},
    }

    def __post_init__(self) -> None:
        require(
            self.length >= 4 and self.length % 2 == 0,
            f"{self.name} needs two letters at least and as many blanks, so an even length from 4 on, got {self}.",
        )
        require(self.vocabulary >= 4, f"{self.name} needs two letters beside padding and blank, got {self}.")

    @abstractmethod
    def written(self, letters_BM: torch.Tensor) -> torch.Tensor:
        """What is to stand at the blanks."""

    @property
    def answers(self) -> range:
        return range(BLANK + 1, self.vocabulary)

    def generate(self, count: int, generator: torch.Generator) -> Batch:
        import torch

        letters_BM = torch.randint(
            *(self.answers.start, self.answers.stop, (count, self.length // 2)),
            generator=generator,
            device=generator.device,
        )
        ids_BN = torch.cat([letters_BM, torch.full_like(letters_BM, BLANK)], 1)
        written_BM = self.written(letters_BM) - self.answers.start
        labels_BN = torch.cat([torch.full_like(letters_BM, NOTHING_ASKED), written_BM], 1)
        return Batch(ids_BN, torch.full_like(ids_BN[:, 0], self.length), labels_BN)

    def longer(self, factor: float) -> Self:
        return replace(self, length=2 * stretched(self.length // 2, factor))

    @property
    def without_position(self) -> float:
        """E[largest count] / (length / 2)."""
        return share_of_mode(self.length // 2, len(self.answers))


@final
@dataclass(frozen=True, kw_only=True)
class Copy(Recall):
    name = "copy"
    summary = "Write the letters again."

    def written(self, letters_BM: torch.Tensor) -> torch.Tensor:
        return letters_BM


@final
@dataclass(frozen=True, kw_only=True)
class Reverse(Recall):
    name = "reverse"
    summary = "Write the letters again, from the last to the first."

    def written(self, letters_BM: torch.Tensor) -> torch.Tensor:
        return letters_BM.flip(1)
