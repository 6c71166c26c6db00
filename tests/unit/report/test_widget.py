"""The widget of a notebook: what it holds, for whom there is one, and what it says without its package."""

from __future__ import annotations

import re
import sys

import pytest

from tests.unit.report import making
from tests.unit.report.test_attention import HOSTILE, attended, with_attention
from toposcope.core.errors import BadValue, MissingExtra
from toposcope.report import widget


def test_it_holds_the_map_and_the_attention() -> None:
    pytest.importorskip("anywidget", reason="widgets need anywidget: pip install 'toposcope[notebook]'")
    result = with_attention(attended(HOSTILE, [(0, 1), (1, 0)]))
    made = result.widget()
    assert made.data["map"]["columns"]["layer"] == [each.layer for each in result.heads]
    (window,) = made.data["attention"]["windows"]
    assert [head["logits"] for head in window["heads"]] == [each.logits.codes for each in result.attention[0].heads]
    assert {type(head["logits"]) for head in window["heads"]} == {str}  # marimo writes a kind of str as its repr
    assert not any("\u202e" in token for token in window["tokens"])
    assert "style" not in made.keys  # ipywidgets' own: JupyterLab would look for a widget in it
    assert "application/vnd.jupyter.widget-view+json" in made._repr_mimebundle_()[0]
    made.head = "1.0"
    assert making.traced().widget().data["attention"] is None
    with pytest.raises(BadValue, match="no head map"):
        making.loss().widget()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    widget._widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(MissingExtra, match="notebook"):
        making.traced().widget()
    widget._widget_class.cache_clear()


def test_its_styles_stay_inside() -> None:
    rules = re.sub(r"/\*.*?\*/", "", widget.style(), flags=re.S)
    assert ":root" not in rules
    assert rules.count(":host") >= 4
