"""The report of `check`: findings, those that ask for attention first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.report.blocks import Findings, Page, Paragraphs

_ORDER = {"fault": 0, "warning": 1, "ok": 2}


def build(result: Mapping[str, Any], page: Page) -> None:
    findings = tuple(sorted(result["findings"], key=lambda finding: _ORDER[finding["status"]]))
    page.add("Is the positional encoding in force?", Paragraphs((result["verdict"],)), Findings(findings))
