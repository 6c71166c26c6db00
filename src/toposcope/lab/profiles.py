"""Sizes and training settings that belong together, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from toposcope.core.errors import BadValue, did_you_mean


@dataclass(frozen=True)
class Profile:
    """A size of model and task, and how it is trained. `task_size` is the name under which tasks know the size."""

    name: str
    about: str
    task_size: str
    width: int
    layers: int
    heads: int
    ff: int
    batch: int
    steps: int
    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.98)
    dropout: float = 0.0
    steps_of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # where a task needs others

    def steps_for(self, task: str) -> int:
        return self.steps_of.get(task, self.steps)


_PROFILES = (
    Profile(
        "laptop-s",
        "sentences of 32 tokens, two layers of width 64; about 20 seconds of one core",
        "laptop-s",
        width=64,
        layers=2,
        heads=8,
        ff=128,
        batch=64,
        steps=500,
        lr=2e-3,
        weight_decay=0.01,
        steps_of=MappingProxyType({"distance": 400}),
    ),
    Profile(
        "laptop-m",
        "sentences of 48 tokens, two layers of width 64; about a minute of one core",
        "laptop-m",
        width=64,
        layers=2,
        heads=8,
        ff=128,
        batch=64,
        steps=900,
        lr=2e-3,
        weight_decay=0.01,
        steps_of=MappingProxyType({"distance": 500}),
    ),
    Profile(
        "published",
        "the size of laptop-s with the optimiser settings of the released scripts, scaled down",
        "laptop-s",
        width=64,
        layers=2,
        heads=8,
        ff=128,
        batch=64,
        steps=400,
        lr=3e-3,
        weight_decay=1e-5,
        dropout=0.1,
    ),
    Profile(
        "paper",
        "the size of the paper: six layers of width 256, sentences of 128 tokens; many core-hours",
        "paper",
        width=256,
        layers=6,
        heads=16,
        ff=512,
        batch=512,
        steps=13_700,
        lr=1e-4,
        weight_decay=1e-5,
        dropout=0.1,
        steps_of=MappingProxyType({"count": 6_850}),
    ),
)
PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _PROFILES})


def find_profile(name: str) -> Profile:
    """The profile of that name."""
    if name not in PROFILES:
        raise BadValue(f"'{name}' is no profile. {did_you_mean(name, PROFILES)}")
    return PROFILES[name]
