"""Is the bracket word balanced? Order alone decides.

Every word has as many opening as closing brackets, so its multiset is always the same, and without position nothing
but the prior 1/2 is left. Half of the words are balanced, uniform among all balanced words; the other half is uniform
among the unbalanced ones. No word need be thrown away for that. Of all arrangements of h pairs a share of 1/(h+1) is
balanced (Catalan), so a word is drawn balanced with probability (h-1)/(2h) and arranged at random otherwise:

    (h-1)/(2h) + (h+1)/(2h) * 1/(h+1) = 1/2.

Causally the task is as natural; a causal model can even count brackets without an encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from toposcope.lab.tasks.task import Batch, Sizes, Task, require, stretched

if TYPE_CHECKING:
    import torch

OPEN, CLOSE = 1, 2


@dataclass(frozen=True, kw_only=True)
class Dyck(Task):
    """Ids: 1 = opening, 2 = closing. Label 1 for a balanced word, 0 for an unbalanced one."""

    name = "dyck"
    summary = "Is the word of brackets balanced?"
    position_sensitive = True
    reads = "pooled"
    profiles: ClassVar[Sizes] = {"laptop-s": {"length": 32}, "laptop-m": {"length": 48}, "paper": {"length": 128}}

    vocabulary: int = field(default=3, init=False)

    def __post_init__(self) -> None:
        require(
            self.length >= 2 and self.length % 2 == 0, f"brackets come in pairs: give an even length, not {self}."
        )

    @property
    def answers(self) -> range:
        return range(2)

    def generate(self, count: int, generator: torch.Generator) -> Batch:
        import torch

        pairs = self.length // 2
        options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
        drawn_balanced_B1 = torch.rand((count, 1), **options) < (pairs - 1) / (2 * pairs)
        anyhow_BN = _arranged(torch.rand((count, self.length), **options), pairs)
        balanced_BN = _rotated_to_balance(_arranged(torch.rand((count, self.length + 1), **options), pairs + 1))
        steps_BN = torch.where(drawn_balanced_B1, balanced_BN, anyhow_BN)
        labels_B = (steps_BN.cumsum(1).amin(1) >= 0).long()
        return Batch(torch.where(steps_BN > 0, OPEN, CLOSE), torch.full_like(labels_B, self.length), labels_B)

    def longer(self, factor: float) -> Self:
        return replace(self, length=2 * stretched(self.length // 2, factor))

    @property
    def without_position(self) -> float:
        """The prior: every word has the same multiset."""
        return self.prior


def _arranged(random_BN: torch.Tensor, ups: int) -> torch.Tensor:
    """Steps +1 and -1 in uniformly random order, `ups` of them +1, from independent uniform numbers."""
    import torch

    return torch.where(random_BN.argsort(1).argsort(1) < ups, 1, -1)


def _rotated_to_balance(steps_BN: torch.Tensor) -> torch.Tensor:
    """The balanced word inside a cyclic arrangement of h+1 steps up and h down.

    Cycle lemma: exactly one of the 2h+1 rotations stays above 0 all the way. It starts right after the last time the
    walk is lowest; its first step goes up, and what follows is a balanced word, uniform if the arrangement is.
    """
    import torch

    count = steps_BN.shape[1]
    heights_BN = steps_BN.cumsum(1)
    last_lowest_B = count - 1 - heights_BN.flip(1).argmin(1)
    columns_BN = (last_lowest_B[:, None] + 1 + torch.arange(count, device=steps_BN.device)) % count
    return steps_BN.gather(1, columns_BN)[:, 1:]
