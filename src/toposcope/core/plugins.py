"""What other packages bring: encodings, tasks and families, declared by entry points and found when first asked for.

A package names its objects in its pyproject.toml, and being installed is all it needs:

    [project.entry-points."toposcope.encodings"]
    wave = "my_package:WAVE"

A plug-in that cannot be used is left out, with one sentence that names its package; nothing else is disturbed by it.
Names that Toposcope has already are refused, so that a name means the same everywhere.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from toposcope.core.printable import printable

BUILT_IN = "toposcope"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_log = logging.getLogger("toposcope")
_origins: dict[str, str] = {}  # the package behind each top-level module that a plug-in was loaded from


@dataclass(frozen=True)
class Plugin:
    """One object of another package; `origin` is that package and its version."""

    name: str
    value: Any
    origin: str


def plugins(group: str, wrong: Callable[[Any], str | None]) -> Mapping[str, Plugin]:
    """What installed packages declare in the group `toposcope.<group>`, by name.

    `wrong` says in words why an object cannot be used, or None. An object's own name must be its entry point's.
    """
    found: dict[str, Plugin] = {}
    for point in sorted(entry_points(group=f"toposcope.{group}"), key=lambda each: (each.name, _origin(each))):
        try:
            value = point.load()
            _origins[point.value.partition(":")[0].partition(".")[0].strip()] = _origin(point)
            problem = _misnamed(point.name, value, found) or wrong(value)
        except (Exception, SystemExit) as error:  # noqa: BLE001 a stranger's module may do anything when imported
            first = printable((str(error).splitlines() or [""])[0])
            problem = f"loading it fails with {type(error).__name__}: {first}"
        if problem is None:
            found[point.name] = Plugin(point.name, value, _origin(point))
        else:
            _log.warning(
                "toposcope: the plug-in '%s' of the package %s is left out: %s.",
                point.name,
                _origin(point),
                problem.rstrip("."),
            )
    return MappingProxyType(found)


def origins(built_in: Mapping[str, Any], brought: Mapping[str, Plugin]) -> Mapping[str, str]:
    """The package behind each name."""
    return {**dict.fromkeys(built_in, BUILT_IN), **{name: each.origin for name, each in brought.items()}}


def at_fault(error: BaseException) -> str | None:
    """The package whose plug-in raised an error, or None where it comes from elsewhere."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(name).partition(".")[0] for name in frames]
    return next((_origins[module] for module in reversed(modules) if module in _origins), None)


def _misnamed(name: str, value: Any, found: Mapping[str, Plugin]) -> str | None:
    if not _NAME.fullmatch(name):
        return "a name is made of small letters, digits, '-' and '_', and starts with a letter"
    if getattr(value, "name", None) != name:
        return f"the object calls itself {getattr(value, 'name', None)!r}"
    return f"{found[name].origin} brings the same name" if name in found else None


def _origin(point: EntryPoint) -> str:
    return "(unknown)" if point.dist is None else f"{point.dist.name} {point.dist.version}"
