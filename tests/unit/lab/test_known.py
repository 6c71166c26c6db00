"""`ls`: every list, as a result, with advice that can be pasted."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from typer.main import get_command

import toposcope
from tests.unit.results import holds
from toposcope.cli import _application
from toposcope.core.citation import WORKS, CiteResult
from toposcope.core.errors import BadValue
from toposcope.lab.known import Lists
from toposcope.report.views.ls import advice


@pytest.mark.parametrize("what", get_args(Lists))
def test_every_list_is_a_result(what: Lists, tmp_path: Path) -> None:
    found = toposcope.ls(what)
    saved = holds(found, tmp_path)
    assert saved["what"] == what
    assert all(each.about for each in found.names)
    assert len({each.name for each in found.names}) == len(found.names) > 1


def test_details_are_those_of_the_kind() -> None:
    encodings = {each.name: each for each in toposcope.ls("encodings").names}
    assert {"base", "scaling"} <= set(encodings["rope"].details)
    assert {each.name: each.details for each in toposcope.ls("tasks").names}["distance"][0] == "laptop-s"
    assert "llama" in {each.name: each.details for each in toposcope.ls("families").names}["llama"]


def test_the_advice_names_what_is_there() -> None:
    found = toposcope.ls("models")
    missing = tuple(replace(each, ready=False, install=f"pip install {each.name}") for each in found.names)
    assert advice(replace(found, names=missing))[1] == missing[0].install
    second = replace(found, names=(missing[0], replace(missing[1], ready=True, install="")))
    assert shlex.split(advice(second)[1])[-1] == missing[1].name


def test_a_line_that_installs_several_names_is_printed_once() -> None:
    found = toposcope.ls("texts")
    line = "pip install --no-deps texts==1.0"
    for ready in (0, 1):
        names = tuple(
            replace(each, ready=n < ready, install="" if n < ready else line) for n, each in enumerate(found.names)
        )
        printed = str(replace(found, names=names))
        assert printed.count("pip install") == 1
        assert f"  {line}" in printed.splitlines(), "on one line"
        assert ("toposcope loss" in printed) == bool(ready)


@pytest.mark.parametrize("what", get_args(Lists))
def test_the_advice_can_be_pasted(what: Lists) -> None:
    shown = toposcope.ls(what)
    line = advice(shown)[1]
    assert f"  {line}" in str(shown).splitlines(), "on one line"
    if "MODEL" not in line and line.startswith("toposcope"):
        words = shlex.split(line)[1:]
        assert get_command(_application(words[0])).commands[words[0]].make_context(words[0], words[1:])


def test_an_unknown_list_is_refused() -> None:
    with pytest.raises(BadValue, match="models"):
        toposcope.ls("model")  # type: ignore[arg-type]


def test_what_to_cite_is_a_result(tmp_path: Path) -> None:
    saved = holds(CiteResult(), tmp_path)
    assert [each["key"] for each in saved["works"]] == [work.key for work in WORKS]
