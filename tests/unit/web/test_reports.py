"""A report may run the code it came with, and nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

import pytest

from toposcope.core.errors import BadFile
from toposcope.report.blocks import Page
from toposcope.report.page import SCRIPTS, STYLE, page_html
from toposcope.web.reports import POLICY, report_of


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_names_the_files_we_ship() -> None:
    policy = dict(part.strip().partition(" ")[::2] for part in POLICY.split(";"))
    ours = files("toposcope.report") / "assets"
    own = {digest((ours / name).read_text(encoding="utf-8")) for name in SCRIPTS if "/" not in name}
    assert own < set(policy["script-src"].split())
    assert len(policy["script-src"].split()) == len(SCRIPTS)
    assert policy["style-src"] == digest((ours / STYLE).read_text(encoding="utf-8"))
    assert policy["default-src"] == "'none'"
    assert policy["sandbox"] == "allow-scripts allow-downloads"
    assert "unsafe" not in POLICY


def test_a_page_with_a_script_that_is_not_ours_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(title="t")
    assert page_html(page, []).count("<main") == 1
    monkeypatch.setattr("toposcope.report.page.embeddable", lambda value: "</SCRIPT><Script>evil()</Script><script>")
    with pytest.raises(BadFile, match="became code"):
        page_html(page, [])


def test_a_result_that_lacks_everything_is_refused_in_words() -> None:
    with pytest.raises(BadFile):
        report_of({"schema": "toposcope/scan/1"})
    with pytest.raises(BadFile):
        report_of({"schema": "toposcope/nonsense/1"})
