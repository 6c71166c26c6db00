"""A report may run the code it came with, and nothing else."""

from __future__ import annotations

import base64
import hashlib

import pytest

from toposcope.errors import BadFile
from toposcope.web.reports import policy_for, report_of


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_every_script_and_style_is_named_by_its_hash() -> None:
    scripts = "<script>let a = '<b>' && 1;\r\nf()</script><script type='x'>{}</script>"
    text = f"<style>p {{ color: red }}</style><p style='a: b'>x</p>{scripts}"
    policy = dict(part.strip().partition(" ")[::2] for part in policy_for(text).split(";"))
    assert policy["style-src-elem"] == digest("p { color: red }")
    assert set(policy["script-src"].split()) == {digest("let a = '<b>' && 1;\nf()"), digest("{}")}
    assert policy["style-src-attr"] == f"'unsafe-hashes' {digest('a: b')}"
    assert policy["default-src"] == "'none'"
    assert "allow-same-origin" not in policy["sandbox"]
    assert "unsafe-inline" not in policy_for(text)
    assert "unsafe-eval" not in policy_for(text)


def test_a_page_without_code_may_run_none() -> None:
    assert "script-src 'none'" in policy_for("<p>x</p>")


def test_a_result_that_lacks_everything_is_refused_in_words() -> None:
    with pytest.raises(BadFile, match=r"cannot be shown|is not one"):
        report_of({"schema": "toposcope/scan/1"})
    with pytest.raises(BadFile):
        report_of({"schema": "toposcope/nonsense/1"})
