"""Installed models, each loaded once for all tests of a process; where one is not installed its tests are skipped."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

import toposcope
from toposcope.checkpoints.installed import find
from toposcope.core.errors import NotFound
from toposcope.models.load import Reference, load_reference, read_text


def path_of(name: str) -> Path:
    """Where an installed model lies; the reason for skipping names the command that installs it."""
    try:
        path = find(name).path()
    except NotFound as missing:
        pytest.skip(str(missing))
    if path is None:
        pytest.skip(f"the package of {name} is not installed")
    return path


def reference_of(name: str, *, head: bool = False, attention: str = "eager") -> Reference:
    """The model as transformers runs it, with a text at hand.

    There is one SmolLM2, with its head: what is asked for is set, or taken from it. So a test (or the fixture of its
    module) asks here and does not keep a model for other modules.
    """
    for package in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"running {name} needs {package}: pip install {package}")
    path_of(name)
    try:
        read_text("wiki")
    except NotFound as missing:
        pytest.skip(str(missing))
    if name != "smollm2":
        return _loaded(name, head, attention)
    whole = _loaded(name, True, "eager")
    whole.model.set_attn_implementation(attention)
    return whole if head else Reference(whole.path, whole.model.base_model, whole.tokenizer)


@cache
def _loaded(name: str, head: bool, attention: str) -> Reference:
    return load_reference(name, head=head, attention=attention)


@cache
def opened(name: str) -> toposcope.Model:
    """The model as Toposcope reads it; it stays open."""
    path_of(name)
    if name.startswith(("rxnfp", "rxnmapper", "ruaccent")):
        pytest.importorskip("torch")
    return toposcope.load(name)
