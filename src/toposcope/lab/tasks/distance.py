"""How far is B from A? The probe that needs position.

A sentence is l fillers, A, m fillers, B, r fillers, with l and r uniform in 1..side and m uniform in 1..between, all
independent. The answer is the distance from A to B, m + 1.

Two things to know before reading an accuracy on it:

* The length l + m + r + 2 leaks the answer. Fillers are independent of m, so the length is all that a model without
  position has, and its best accuracy is sum_length max_m P(m, length). With `fixed_length` the right side is
  filled up to the task's length: then the multiset of tokens is independent of the answer; only the prior is left.
* With `collide` the fillers are drawn from all ids, A and B among them, as a public version of this task does.
  Then some sentences have several readings, and no model reaches 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from toposcope.lab.tasks.task import Batch, Rate, Sizes, Task, require, stretched

if TYPE_CHECKING:
    import torch

A, B = 1, 2
CEILING_SAMPLES = 100_000
# The vocabulary that keeps the paper's rate of collisions at smaller sizes.
COLLIDING_VOCABULARY = {"laptop-s": 224, "laptop-m": 224, "paper": 574}


@dataclass(frozen=True, kw_only=True)
class Distance(Task):
    """Ids: 1 = A, 2 = B, fillers 3 .. vocabulary-1 (1 .. vocabulary-1 with `collide`). Label m - 1."""

    name = "distance"
    summary = "How far is B from A?"
    position_sensitive = True
    reads = "pooled"
    profiles: ClassVar[Sizes] = {
        "laptop-s": {"side": 5, "between": 18, "vocabulary": 64, "length": 32},
        "laptop-m": {"side": 8, "between": 28, "vocabulary": 64, "length": 48},
        "paper": {"side": 25, "between": 70, "vocabulary": 574, "length": 128},
    }

    side: int
    between: int
    collide: bool = False
    fixed_length: bool = False

    def __post_init__(self) -> None:
        require(self.side >= 1 and self.between >= 1, f"distance needs fillers on every side, got {self}.")
        require(self.vocabulary >= 4, f"distance needs 4 ids at least (padding, A, B, a filler), got {self}.")
        least = 2 * self.side + self.between + 2
        require(self.length >= least, f"distance with these sides needs a length of {least} at least, got {self}.")

    @classmethod
    def sized(cls, profile: str = "laptop-s", **changes: Any) -> Self:
        """The task in one of its sizes; collisions come with a vocabulary that keeps them as rare as in the paper."""
        if changes.get("collide") and profile in COLLIDING_VOCABULARY:
            changes = {"vocabulary": COLLIDING_VOCABULARY[profile], **changes}
        return super().sized(profile, **changes)

    @property
    def answers(self) -> range:
        return range(2, self.between + 2)

    def generate(self, count: int, generator: torch.Generator) -> Batch:
        import torch

        def uniform(low: int, high: int, *shape: int) -> torch.Tensor:
            return torch.randint(low, high + 1, shape, generator=generator, device=generator.device)

        left_B1 = uniform(1, self.side, count, 1)
        between_B1 = uniform(1, self.between, count, 1)
        right_B1 = uniform(1, self.side, count, 1)
        ids_BN = uniform(A if self.collide else B + 1, self.vocabulary - 1, count, self.length)
        ids_BN.scatter_(1, left_B1, A)
        ids_BN.scatter_(1, left_B1 + between_B1 + 1, B)
        lengths_B1 = left_B1 + between_B1 + right_B1 + 2
        if self.fixed_length:
            lengths_B1 = torch.full_like(lengths_B1, self.length)
        ids_BN *= torch.arange(self.length, device=generator.device) < lengths_B1
        return Batch(ids_BN, lengths_B1.squeeze(1), between_B1.squeeze(1) - 1)

    def longer(self, factor: float) -> Self:
        """Longer sides, so that A and B stand at places not seen before; the distances, the classes, stay."""
        length = stretched(self.length, factor)
        return replace(self, length=length, side=self.side + (length - self.length) // 2)

    @property
    def without_position(self) -> float:
        """sum_length max_m P(m, length), by enumeration; the prior for a fixed length."""
        if self.fixed_length:
            return self.prior
        one_side = np.ones(self.side)
        ways_of_sides = np.convolve(one_side, one_side)  # of l + r = 2 .. 2 side
        best = np.zeros(self.length + 1)
        for m in range(1, self.between + 1):
            lengths = np.arange(2, 2 * self.side + 1) + m + 2
            best[lengths] = np.maximum(best[lengths], ways_of_sides)
        return float(best.sum() / (self.side**2 * self.between))

    @property
    def ceiling(self) -> Rate:
        """1 without collisions; with them E[max_m P(m | sentence)], the posterior exact and the mean over samples."""
        return _bayes_rate(self) if self.collide else Rate(1.0)


def posterior(task: Distance, ids_BN: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """P(m | sentence) for m = 1 .. between, shape (B, between): what a perfect reader knows.

    (l, m, r) are drawn uniformly, and every place that is neither the A nor the B of a reading has probability
    1 / (number of fillers) whatever stands there. So all readings of a sentence that the generator could have meant
    are equally likely, and P(m | sentence) is the share of them with this m.
    """
    import torch

    is_a_BN, is_b_BN = ids_BN == A, ids_BN == B
    m_M = torch.arange(1, task.between + 1, device=ids_BN.device)
    readings_BM = torch.zeros(len(ids_BN), task.between, device=ids_BN.device)
    for left in range(1, task.side + 1):
        found_BM = is_a_BN[:, left, None] & is_b_BN[:, left + 2 : left + 2 + task.between]
        if not task.fixed_length:
            right_BM = lengths_B[:, None] - left - m_M - 2
            found_BM = found_BM & (right_BM >= 1) & (right_BM <= task.side)
        readings_BM += found_BM
    return readings_BM / readings_BM.sum(1, keepdim=True)


def simple_rules(task: Distance, samples: int = CEILING_SAMPLES, seed: int = 0) -> Mapping[str, Rate]:
    """How often two rules are right that need no idea of the task but the words A and B.

    "first A, last B" measures from the first A to the last B; "first A, next B" to the first B after that A.
    """
    import torch

    batch = task.generate(samples, torch.Generator().manual_seed(seed))
    columns_N = torch.arange(task.length)
    is_b_BN = batch.ids_BN == B
    first_a_B = (batch.ids_BN == A).int().argmax(1)
    last_b_B = torch.where(is_b_BN, columns_N, -1).amax(1)
    next_b_B = (is_b_BN & (columns_N > first_a_B[:, None])).int().argmax(1)
    found = {"first A, last B": last_b_B, "first A, next B": next_b_B}
    return {name: _rate((b_B - first_a_B - 2 == batch.labels).double()) for name, b_B in found.items()}


@cache
def _bayes_rate(task: Distance) -> Rate:
    import torch

    batch = task.generate(CEILING_SAMPLES, torch.Generator().manual_seed(0))
    return _rate(posterior(task, batch.ids_BN, batch.lengths_B).amax(1).double())


def _rate(right_S: torch.Tensor) -> Rate:
    return Rate(float(right_S.mean()), float(right_S.std()) / math.sqrt(len(right_S)), len(right_S))
