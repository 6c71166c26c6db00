"""What a task is: sentences of token ids, what is asked of them, and what can be reached without position.

Ids start at 1; 0 is padding. An answer is a class number in 0 .. classes-1; `answers[label]` is what it stands for.
A task is read in one of two ways:

* "pooled": one label per sentence, labels of shape (B,), read from the mean over the valid tokens;
* "token": labels of shape (B, N) with NOTHING_ASKED where nothing is asked, read at the token itself.

Four rates belong beside every accuracy (the share of the asked labels that are right):

* prior: always giving the commonest answer;
* without_position: the most that a bidirectional model can reach which knows no positions. Such a model sees a
  pooled sentence as a multiset of tokens, and an asked token as its own id in that multiset;
* ceiling: the most that any model can reach, 1 unless sentences are ambiguous;
* floor: best score without solving the task: without_position for a position-sensitive task,
  the prior for the others (there a model without position can reach the ceiling).

Every task can be asked of a causal model as well: pooling sees the last token, and asked tokens come after what they
ask for. But a causal mask tells positions apart by itself, so `without_position` bounds bidirectional models only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from toposcope.core.errors import BadValue, did_you_mean

if TYPE_CHECKING:
    import torch

NOTHING_ASKED = -1
Sizes = Mapping[str, Mapping[str, int]]  # the parameters of a task, by the name of a profile


@dataclass(frozen=True, eq=False)
class Batch:
    """Sentences padded with 0 to the task's length, their true lengths, and labels of shape (B,) or (B, N)."""

    ids_BN: torch.Tensor
    lengths_B: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The same sentences on another device."""
        return Batch(self.ids_BN.to(device), self.lengths_B.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Rate:
    """An accuracy. `error` is its standard error over `samples` sentences; both are 0 where the rate is exact."""

    value: float
    error: float = 0.0
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A generator of sentences. `length` is that of the longest, `vocabulary` counts all ids with the padding."""

    name: ClassVar[str]
    summary: ClassVar[str]
    position_sensitive: ClassVar[bool]
    reads: ClassVar[Literal["pooled", "token"]]
    profiles: ClassVar[Sizes]

    length: int
    vocabulary: int

    @classmethod
    def sized(cls, profile: str = "laptop-s", **changes: Any) -> Self:
        """The task in one of its sizes, with some parameters changed."""
        if profile not in cls.profiles:
            raise BadValue(f"the task '{cls.name}' has no size '{profile}'. {did_you_mean(profile, cls.profiles)}")
        known = [field.name for field in fields(cls) if field.init]
        for key in changes:
            if key not in known:
                raise BadValue(f"the task '{cls.name}' has no parameter '{key}'. {did_you_mean(key, known)}")
        return cls(**{**cls.profiles[profile], **changes})

    @property
    @abstractmethod
    def answers(self) -> range:
        """What the classes stand for, in order."""

    @property
    def classes(self) -> int:
        return len(self.answers)

    @abstractmethod
    def generate(self, count: int, generator: torch.Generator) -> Batch:
        """So many independent sentences. The same state of the generator gives the same sentences."""

    @abstractmethod
    def longer(self, factor: float) -> Self:
        """The same task on sentences `factor` times as long, with the same ids and the same classes."""

    @property
    def prior(self) -> float:
        """Every task here draws its answer uniformly, so a constant guess is right once in `classes`."""
        return 1 / self.classes

    @property
    @abstractmethod
    def without_position(self) -> float:
        """The best accuracy of a bidirectional model that knows no positions."""

    @property
    def ceiling(self) -> Rate:
        """The best accuracy of any model."""
        return Rate(1.0)

    @property
    def floor(self) -> float:
        """Best score without solving the task: see the head of this module."""
        return self.without_position if self.position_sensitive else self.prior


def require(fine: bool, sentence: str) -> None:
    """Raise BadValue with the sentence unless the parameters are fine."""
    if not fine:
        raise BadValue(sentence)


def stretched(length: int, factor: float) -> int:
    """`length` times a factor of at least 1, rounded."""
    require(
        math.isfinite(factor) and factor >= 1, f"a longer task needs a finite factor of at least 1, got {factor}."
    )
    return round(length * factor)


def asked_at(columns_BK: torch.Tensor, labels_BK: torch.Tensor, length: int) -> torch.Tensor:
    """Labels (B, N) that ask the given labels at the given columns and nothing elsewhere."""
    import torch

    labels_BN = torch.full((len(columns_BK), length), NOTHING_ASKED, device=columns_BK.device)
    return labels_BN.scatter_(1, columns_BK, labels_BK)
