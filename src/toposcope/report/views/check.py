"""The view of `check`: the outcome in a sentence, then the findings, those that ask for attention first."""

from __future__ import annotations

from dataclasses import asdict

from toposcope.checks.findings import CheckResult
from toposcope.report.blocks import Findings, Page, Summary


def view(result: CheckResult, page: Page) -> None:
    """Add the section of a check."""
    findings = Findings(tuple(asdict(finding) for finding in result.findings))
    page.add("Is the positional encoding in force?", Summary((result.verdict,)), findings)
