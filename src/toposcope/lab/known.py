"""What Toposcope knows by name: models and texts of installed packages, families, encodings, tasks, bugs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from toposcope.checkpoints.families import families, family_origins
from toposcope.checkpoints.hub.cache import cached_models
from toposcope.checkpoints.hub.meter import show_bytes
from toposcope.checkpoints.installed import MODELS, TEXTS, InstalledItem
from toposcope.core.errors import BadValue, did_you_mean
from toposcope.core.result import Provenance, Result
from toposcope.encodings.registry import kind_origins, kinds
from toposcope.lab.tasks import task_kinds, task_origins
from toposcope.live.bugs import BUGS

Lists = Literal["models", "families", "encodings", "tasks", "texts", "bugs"]


@dataclass(frozen=True)
class KnownName:
    """A name, what it stands for, and the package it comes from.

    `ready` is False where that package is not installed; `install` is then the command that brings it. `details` are
    the model types that a family reads, the parameters of an encoding, the sizes of a task, the commits of a model
    from the hub, or the reports of a bug. A bug also has its `number` and the `probe` of `check --live` that sees it.
    """

    name: str
    about: str
    origin: str
    ready: bool = True
    install: str = ""
    aliases: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    number: int | None = None
    probe: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class LsResult(Result):
    """One of the lists of names."""

    kind = "ls"
    table = "names"

    what: Lists
    names: tuple[KnownName, ...]


def ls(what: Lists = "models") -> LsResult:
    """The models, families, encodings, tasks or texts that can be named, or the bugs that `check --live` knows."""
    if what not in _LISTS:
        raise BadValue(f"there is no list of '{what}'. {did_you_mean(what, _LISTS)}")
    return LsResult(provenance=Provenance(options={"what": what}), what=what, names=tuple(_LISTS[what]()))


def _items(items: Sequence[InstalledItem]) -> list[KnownName]:
    found = [(item, item.path() is not None) for item in items]
    return [
        KnownName(item.name, item.description, item.package.name, ready, "" if ready else item.install)
        for item, ready in found
    ]


def _cached() -> list[KnownName]:
    """The models from the hub of which something is here, whole files first."""
    return [
        KnownName(
            each.repo,
            f"{show_bytes(each.size)} {each.holds}; commit {', '.join(commit[:12] for commit in each.commits)}",
            each.origin,
            details=each.commits,
        )
        for each in cached_models()
    ]


def _families() -> list[KnownName]:
    origin = family_origins()
    return [
        KnownName(each.name, each.about, origin[each.name], details=tuple(each.model_types))
        for each in families().values()
    ]


def _encodings() -> list[KnownName]:
    origin = kind_origins()
    return [
        KnownName(
            kind.name,
            kind.summary,
            origin[kind.name],
            aliases=tuple(kind.aliases),
            details=tuple(parameter.name for parameter in kind.parameters),
        )
        for kind in kinds().values()
    ]


def _tasks() -> list[KnownName]:
    origin = task_origins()
    return [
        KnownName(name, kind.summary, origin[name], details=tuple(kind.profiles))
        for name, kind in task_kinds().items()
    ]


def _bugs() -> list[KnownName]:
    return [
        KnownName(bug.key, bug.title, "toposcope", details=bug.seen_in, number=bug.number, probe=bug.probe)
        for bug in BUGS
    ]


_LISTS: Mapping[str, Callable[[], list[KnownName]]] = {
    "models": lambda: [*_items(MODELS), *_cached()],
    "families": _families,
    "encodings": _encodings,
    "tasks": _tasks,
    "texts": lambda: _items(TEXTS),
    "bugs": _bugs,
}
