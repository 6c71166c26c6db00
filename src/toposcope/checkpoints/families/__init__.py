"""One adapter file per family of architectures. Each module here lists its `FAMILIES`; there is no central list."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.spec import ModelSpec
from toposcope.errors import UnknownFamily, did_you_mean


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
    """All families by name."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__):
        for family in getattr(importlib.import_module(f"{__name__}.{module.name}"), "FAMILIES", ()):
            found[family.name] = family
    return MappingProxyType(dict(sorted(found.items())))


def choose_family(config: Config, source: TensorSource, forced: str | None = None) -> Family:
    """The family named by the user, else by the configuration, else recognised by its tensor names."""
    known = families()
    if forced is not None:
        if forced not in known:
            raise UnknownFamily(f"there is no family '{forced}'. {did_you_mean(forced, known)}")
        return known[forced]
    gguf = source.format == "gguf"
    fitting = [family for family in known.values() if (family.container == "gguf") == gguf]
    types = {kind: family for family in fitting for kind in family.model_types}
    key = "general.architecture" if gguf else "model_type"  # a config.json beside a GGUF file does not describe it
    kind = source.metadata.get(key) if gguf else config.get(key)
    if isinstance(kind, str) and kind in types:
        return types[kind]
    if kind is None and not gguf:
        for family in known.values():
            if family.signature and any(name.endswith(family.signature) for name in source.names()):
                return family
    seen = ", ".join(sorted(source.names())[:8])
    named = f"names {key} '{kind}', which no adapter knows" if kind else f"names no {key}"
    raise UnknownFamily(
        f"{source.path if gguf else config.where} {named}; the tensors are called {seen}, ... "
        f"If it is built like a known family, name it with --family. {did_you_mean(str(kind or ''), types)}"
    )
