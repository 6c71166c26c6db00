"""A task: which token stands first in a row of shuffled tokens?"""

from dataclasses import dataclass, replace

from toposcope.lab.tasks import Batch, Task


@dataclass(frozen=True, kw_only=True)
class First(Task):
    name = "first"
    summary = "Which token stands first?"
    position_sensitive = True
    reads = "pooled"
    profiles = {"laptop-s": {"length": 16, "vocabulary": 9}}  # noqa: RUF012 nobody changes it

    @property
    def answers(self):
        return range(1, self.vocabulary)

    @property
    def without_position(self):
        return 1 / self.classes  # every token stands in the row equally often

    def generate(self, count, generator):
        import torch

        rounds = torch.rand(count, self.length // self.classes, self.classes, generator=generator)
        ids_BN = rounds.argsort(dim=2).flatten(1) + 1
        return Batch(ids_BN, torch.full((count,), self.length), ids_BN[:, 0] - 1)

    def longer(self, factor):
        return replace(self, length=self.classes * round(self.length * factor / self.classes))
