"""The line of Python that a page hands out: its verb takes these options, and gives the same result."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import toposcope
from tests.unit.report import making
from tests.unit.tiny import write_llama
from toposcope.report.drawing import origin
from toposcope.report.python_line import VERBS, python_line


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_public_function(verb: str) -> None:
    assert callable(getattr(toposcope, verb))


def test_a_line_makes_its_result_again(tmp_path: Path) -> None:
    model = str(write_llama(tmp_path / "model"))
    found = (
        toposcope.spectrum(["rope", "alibi"], "1k", head_dim=8, trained="256"),
        toposcope.scan(model, layers="0-1", encoding="none"),
        toposcope.check(model),
        toposcope.inspect(model, layers="0"),
        toposcope.compare(model, model),
    )
    for result in found:
        line = python_line({**result.as_dict(), **origin(result)})
        assert line is not None
        call = ast.parse(line).body[0].value  # type: ignore[attr-defined]
        takes = inspect.signature(getattr(toposcope, call.func.attr)).parameters
        assert {word.arg for word in call.keywords} <= set(takes)
        space = {"toposcope": toposcope}
        exec(line, space)
        again = space["result"]
        assert type(again) is type(result)
        assert again.provenance.options == result.provenance.options
        assert again.rows() == result.rows()


def test_words_stay_words_and_flows_have_no_line(tmp_path: Path) -> None:
    name = 'a"); import os  # \n'
    line = python_line({"schema": "toposcope/scan/2", "subjects": [{"name": name, "path": "x"}], "options": {}})
    assert line is not None
    (call,) = (each for each in ast.walk(ast.parse(line)) if isinstance(each, ast.Call))
    assert ast.literal_eval(call.args[0]) == name
    flow = making.flowed(tmp_path)
    assert python_line({**flow, "subjects": [], "options": flow["provenance"]["options"]}) is None
