"""The tasks of the lab, by name: two probes, `distance` and `count`, and six more for breadth.

Sentences are drawn as they are needed, from a seeded generator; `task.py` says what belongs to a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from toposcope.errors import BadValue, did_you_mean
from toposcope.lab.tasks.count import Count
from toposcope.lab.tasks.distance import Distance
from toposcope.lab.tasks.dyck import Dyck
from toposcope.lab.tasks.index import Index
from toposcope.lab.tasks.induction import Induction
from toposcope.lab.tasks.previous import Previous
from toposcope.lab.tasks.recall import Copy, Reverse
from toposcope.lab.tasks.task import NOTHING_ASKED, Batch, Rate, Task

PROFILES = ("laptop-s", "laptop-m", "paper")
_KINDS: Mapping[str, type[Task]] = {
    kind.name: kind for kind in (Distance, Count, Previous, Copy, Reverse, Induction, Index, Dyck)
}


def tasks(profile: str = "laptop-s") -> Mapping[str, Task]:
    """Every task in one size, by name."""
    return MappingProxyType({name: kind.sized(profile) for name, kind in _KINDS.items()})


def find(name: str, profile: str = "laptop-s", **changes: Any) -> Task:
    """The task of that name and size, with some parameters changed: find("distance", collide=True)."""
    if name not in _KINDS:
        raise BadValue(f"'{name}' is no task. {did_you_mean(name, _KINDS)}")
    return _KINDS[name].sized(profile, **changes)


__all__ = ["NOTHING_ASKED", "PROFILES", "Batch", "Rate", "Task", "find", "tasks"]
