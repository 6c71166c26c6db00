"""How many triggers? The probe that needs no position.

The number c is uniform in 0..most; a random subset of c of the `length` places gets a trigger each, uniform among
`triggers` ids (8 in every profile), the other places get fillers. The answer c is a function of the multiset of
tokens, so a model without position can reach 1, and any rearrangement of a sentence keeps its answer. Every sentence
has full length: the number of triggers is then `length` times their share, which a mean over tokens can carry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from toposcope.lab.tasks.task import Batch, Sizes, Task, require, stretched

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class CountTask(Task):
    """Ids: triggers 1 .. triggers, fillers triggers+1 .. vocabulary-1. Label c."""

    name = "count"
    summary = "How many of the tokens are triggers?"
    position_sensitive = False
    reads = "pooled"
    profiles: ClassVar[Sizes] = {
        "laptop-s": {"length": 32, "most": 26, "triggers": 8, "vocabulary": 64},
        "laptop-m": {"length": 48, "most": 40, "triggers": 8, "vocabulary": 64},
        "paper": {"length": 128, "most": 104, "triggers": 8, "vocabulary": 574},
    }

    most: int
    triggers: int

    def __post_init__(self) -> None:
        require(1 <= self.most <= self.length, f"count needs 1 <= most <= length, got {self}.")
        require(
            1 <= self.triggers <= self.vocabulary - 2,
            f"count needs a trigger at least, and a filler beside triggers and padding, got {self}.",
        )

    @property
    def answers(self) -> range:
        return range(self.most + 1)

    def generate(self, count: int, generator: torch.Generator) -> Batch:
        import torch

        options = {"generator": generator, "device": generator.device}
        shape = (count, self.length)
        wanted_B = torch.randint(0, self.most + 1, (count,), **options)
        # The ranks of random numbers are a random order of the places; the first c of them are the subset.
        order_BN = torch.rand(shape, dtype=torch.float64, **options).argsort(1).argsort(1)
        triggers_BN = torch.randint(1, self.triggers + 1, shape, **options)
        fillers_BN = torch.randint(self.triggers + 1, self.vocabulary, shape, **options)
        ids_BN = torch.where(order_BN < wanted_B[:, None], triggers_BN, fillers_BN)
        return Batch(ids_BN, torch.full_like(wanted_B, self.length), wanted_B)

    def longer(self, factor: float) -> Self:
        """More fillers; the same numbers to count to."""
        return replace(self, length=stretched(self.length, factor))

    @property
    def without_position(self) -> float:
        """1: the answer is a function of the multiset."""
        return 1.0
