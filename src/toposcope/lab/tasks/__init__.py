"""The tasks of the lab, by name: two probes, `distance` and `count`, and six more for breadth.

Sentences are drawn as they are needed, from a seeded generator; `task.py` says what belongs to a task.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.core.plugins import Plugin, origins, plugins
from toposcope.lab.tasks.count import CountTask
from toposcope.lab.tasks.distance import Distance
from toposcope.lab.tasks.dyck import Dyck
from toposcope.lab.tasks.index import Index
from toposcope.lab.tasks.induction import Induction
from toposcope.lab.tasks.previous import Previous
from toposcope.lab.tasks.recall import Copy, Reverse
from toposcope.lab.tasks.task import NOTHING_ASKED, Batch, Rate, Task

PROFILES = ("laptop-s", "laptop-m", "paper")
_KINDS: Mapping[str, type[Task]] = {
    kind.name: kind for kind in (Distance, CountTask, Previous, Copy, Reverse, Induction, Index, Dyck)
}


def tasks(profile: str = "laptop-s") -> Mapping[str, Task]:
    """Every task in one size, by name; those of other packages where they have that size."""
    brought = {name: kind for name, kind in task_kinds().items() if name in _KINDS or profile in kind.profiles}
    return MappingProxyType({name: kind.sized(profile) for name, kind in brought.items()})


def find(name: str, profile: str = "laptop-s", **changes: Any) -> Task:
    """The task of that name and size, with some parameters changed: find("distance", collide=True)."""
    kind = _KINDS.get(name) or task_kinds().get(name)
    if kind is None:
        raise BadValue(f"'{name}' is no task. {did_you_mean(name, task_kinds())}")
    return kind.sized(profile, **changes)


def task_kinds() -> Mapping[str, type[Task]]:
    """The class of every task, by name; those of other packages last."""
    return MappingProxyType({**_KINDS, **{name: each.value for name, each in _brought().items()}})


def task_origins() -> Mapping[str, str]:
    """The package behind each task."""
    return origins(_KINDS, _brought())


@cache
def _brought() -> Mapping[str, Plugin]:
    return plugins("tasks", _wrong)


def _wrong(value: Any) -> str | None:
    if not (isinstance(value, type) and issubclass(value, Task)):
        return "it is no subclass of toposcope.lab.tasks.Task"
    if inspect.isabstract(value):
        return f"the class lacks {', '.join(sorted(value.__abstractmethods__))}"
    lacking = [name for name in ("summary", "position_sensitive", "reads", "profiles") if not hasattr(value, name)]
    if lacking:
        return f"the class does not say its {lacking[0]}"
    return f"'{value.name}' is a task of Toposcope already" if value.name in _KINDS else None


__all__ = ["NOTHING_ASKED", "PROFILES", "Batch", "Rate", "Task", "find", "task_kinds", "task_origins", "tasks"]
