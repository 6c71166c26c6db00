"""One adapter file per family of architectures. Each module here lists its `FAMILIES`; there is no central list.

Other packages bring families by the entry points of `toposcope.core.plugins`; ours are tried first.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.core.errors import UnknownFamily, did_you_mean
from toposcope.core.plugins import Plugin, origins, plugins
from toposcope.core.printable import printable


@dataclass(frozen=True)
class Family:
    """An adapter: which models it reads, and how it describes them.

    `model_types` are the names under which configurations know it (`model_type`, or GGUF's `general.architecture`
    for `container` "gguf"). `signature` is the ending of a tensor name that only this family's files have (or several
    such endings); it is used where the configuration does not name a type.
    """

    name: str
    model_types: tuple[str, ...]
    describe: Callable[[Config, TensorSource], ModelSpec]
    about: str
    signature: str | tuple[str, ...] | None = None
    container: str = "transformers"  # or "gguf", "torch"


@cache
def families() -> Mapping[str, Family]:
    """All families by name, those of other packages last."""
    return MappingProxyType({**_built_in(), **{name: each.value for name, each in _brought().items()}})


def family_origins() -> Mapping[str, str]:
    """The package behind each family."""
    return origins(_built_in(), _brought())


def choose_family(config: Config, source: TensorSource, forced: str | None = None) -> Family:
    """The family named by the user, else by the configuration, else recognised by its tensor names."""
    found = _chosen(_built_in(), config, source, forced) or _chosen(families(), config, source, forced)
    if found is not None:
        return found
    if forced is not None:
        raise UnknownFamily(f"unknown family '{forced}'. {did_you_mean(forced, families())}")
    key, kind = _named_type(config, source)
    seen = ", ".join(sorted(source.names())[:8])
    named = f"names {key} '{kind}', which no adapter knows" if kind else f"names no {key}"
    tensors = f"; the tensors are called {seen}, ..." if seen else ""
    raise UnknownFamily(
        f"{source.path if source.format == 'gguf' else config.where} {named}{tensors}. "
        "If it is built like a known family, name it with --family ('toposcope ls families' lists them). "
        f"{did_you_mean(str(kind or ''), _types(families(), source))}"
    )


def claims(family: Family, config: Config, source: TensorSource) -> bool:
    """Whether a family says of itself that it reads this type; a file that names none cannot contradict it."""
    _, kind = _named_type(config, source)
    if kind is None:
        return family.container == "torch" or any(
            name.endswith(family.signature) for name in source.names() if family.signature
        )
    return kind in family.model_types and (family.container == "gguf") == (source.format == "gguf")


def not_compared(family: Family, config: Config, source: TensorSource, why: str) -> str:
    """The remark on a family that the user named for a model of another type, where it could not be compared."""
    key, kind = _named_type(config, source)
    named = f"{key} '{printable(kind, 60)}', which that family does not claim" if kind else f"no {key}"
    return (
        f"read as '{family.name}' because --family says so: the model names {named}, and nothing was compared "
        f"with its own code: {why}."
    )


def _chosen(known: Mapping[str, Family], config: Config, source: TensorSource, forced: str | None) -> Family | None:
    if forced is not None:
        return known.get(forced)
    types = _types(known, source)
    _, kind = _named_type(config, source)
    if isinstance(kind, str) and kind in types:
        return types[kind]
    if kind is None and source.format != "gguf":
        for family in known.values():
            if family.signature and any(name.endswith(family.signature) for name in source.names()):
                return family
    return None


def _named_type(config: Config, source: TensorSource) -> tuple[str, Any]:
    """The key that names the type, and what it says; a config.json beside a GGUF file does not describe it."""
    if source.format == "gguf":
        return "general.architecture", source.metadata.get("general.architecture")
    return "model_type", config.get("model_type")


def _types(known: Mapping[str, Family], source: TensorSource) -> dict[str, Family]:
    gguf = source.format == "gguf"
    return {kind: each for each in known.values() if (each.container == "gguf") == gguf for kind in each.model_types}


@cache
def _built_in() -> Mapping[str, Family]:
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__):
        for family in getattr(importlib.import_module(f"{__name__}.{module.name}"), "FAMILIES", ()):
            found[family.name] = family
    return MappingProxyType(dict(sorted(found.items())))


@cache
def _brought() -> Mapping[str, Plugin]:
    return plugins("families", _wrong)


def _wrong(value: Any) -> str | None:
    if not isinstance(value, Family):
        return f"it is a {type(value).__name__}; expected a toposcope.checkpoints.families.Family"
    if value.name in _built_in():
        return f"'{value.name}' is a family of Toposcope already"
    alike = [each for each in _built_in().values() if (each.container == "gguf") == (value.container == "gguf")]
    clash = next((kind for kind in value.model_types for each in alike if kind in each.model_types), None)
    return None if clash is None else f"Toposcope reads the model type '{clash}' already"
