"""The view of `check`: the outcome in a sentence, then the findings, those that ask for attention first."""

from __future__ import annotations

from dataclasses import asdict

from toposcope.checks.findings import CheckResult
from toposcope.report.blocks import Findings, Page, Summary


def view(result: CheckResult, page: Page) -> None:
    """Add the section of a check."""
    findings = Findings(tuple(asdict(finding) for finding in result.findings))
    page.add("Is the positional encoding in force?", Summary((result.verdict, *_untold(result))), findings)


def _untold(result: CheckResult) -> list[str]:
    """What neither files nor a run tell of a scaling that is in force."""
    kinds = (each.evidence.get("scaling") for each in result.findings if each.id == "rotary-settings")
    scalings = [kind for kind in dict.fromkeys(kinds) if kind not in (None, "default", "proportional")]
    if not scalings:
        return []
    return [
        f"Whether the model was tuned with this {' and '.join(scalings)} scaling is not told here: compare its loss "
        "without it, 'toposcope loss MODEL --encoding rope'."
    ]
