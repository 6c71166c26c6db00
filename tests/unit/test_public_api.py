"""The public interface, frozen: every public name with its signature, as listed in public_api.txt beside this file.

After a change that is meant: python -m tests.unit.test_public_api > tests/unit/public_api.txt
"""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import pytest

LIST = Path(__file__).with_name("public_api.txt")
MODULES = {  # and their public names, where they have no __all__
    "toposcope": (),
    "toposcope.checks": (),
    "toposcope.checkpoints": (),
    "toposcope.checkpoints.attention": ("attention", "logits", "output", "project"),
    "toposcope.checkpoints.families": ("Family", "choose_family", "families"),
    "toposcope.checkpoints.families.common": (
        "Config",
        "LayerSizes",
        "claimed_context",
        "find_root",
        "learned_table",
    ),
    "toposcope.checkpoints.families.table": ("Draft", "Table"),
    "toposcope.checkpoints.spec": ("LatentSpec", "LayerSpec", "Linear", "ModelSpec", "NormSpec", "Skipped"),
    "toposcope.dynamics": (),
    "toposcope.encodings": (),
    "toposcope.core.errors": (
        "BadConfig",
        "BadEncoding",
        "BadFile",
        "BadValue",
        "BadWeights",
        "MissingExtra",
        "MissingTensor",
        "NotFound",
        "RefusedPickle",
        "ToposcopeError",
        "UnknownFamily",
    ),
    "toposcope.lab.tasks": (),
    "toposcope.live.engines.against": ("AgainstResult",),
    "toposcope.live.module.check": ("ModuleCheckResult",),
    "toposcope.refinements": (),
    "toposcope.report": (),
    "toposcope.spectra": (),
    "toposcope.testing": ("assert_positions_equal",),
}


def public(module: str) -> Iterator[str]:
    """One line for each public name, and one for each public member of a class."""
    home = importlib.import_module(module)
    for name in sorted(MODULES[module] or home.__all__):
        yield from described(f"{module}.{name}", getattr(home, name))


def described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, enum.EnumType):
        yield f"{name}: {', '.join(member.name for member in value)}"
    elif isinstance(value, type):
        yield f"{name}{'' if issubclass(value, Exception) else signature(value)}"
        for member, inner in sorted(vars(value).items()):
            if member.startswith("_") or not _of_the_class(inner):
                continue
            called = inner.__func__ if isinstance(inner, classmethod | staticmethod) else inner
            yield f"{name}.{member}{signature(called) if callable(called) else ''}"
    elif get_origin(value) is not None:
        yield f"{name}: {value}"
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _of_the_class(inner: Any) -> bool:
    return isinstance(inner, property | classmethod | staticmethod) or inspect.isfunction(inner)


def signature(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))


@pytest.mark.parametrize("module", MODULES)
def test_the_public_interface_is_as_listed(module: str) -> None:
    listed = [line for line in LIST.read_text().splitlines() if home(line) == module]
    found = list(public(module))
    change = "\n".join(difflib.unified_diff(listed, found, "listed", "found", lineterm="", n=0))
    assert not change, f"the public interface has changed:\n{change}\nIf it is meant: see the head of this file."


def test_the_list_holds_nothing_else() -> None:
    lines = LIST.read_text().splitlines()
    assert {home(line) for line in lines} == set(MODULES)
    assert len(set(lines)) == len(lines)


def home(line: str) -> str:
    """The module a line of the list belongs to: the longest whose name it starts with."""
    name = re.split(r"[:(]", line)[0]
    return max((module for module in MODULES if name.startswith(f"{module}.")), key=len, default="")


def test_a_change_is_shown() -> None:
    def sample(a: int, *, b: str = "x") -> None: ...

    assert list(described("m.sample", sample)) == ["m.sample(a: 'int', *, b: 'str' = 'x') -> 'None'"]


def test_every_documented_part_is_listed() -> None:
    page = (Path(__file__).parents[2] / "docs/python.md").read_text()
    named = set(re.findall(r"^\| `(toposcope\.\w+)", page, re.M))
    assert named
    lines = {re.split(r"[:(]", line)[0] for line in LIST.read_text().splitlines()}
    assert named <= lines | set(MODULES)


if __name__ == "__main__":
    for each in MODULES:
        print("\n".join(public(each)))
