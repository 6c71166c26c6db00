"""The view of `check_module`: as of any check, and the probes that ran or could not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from toposcope.live.module.check import ModuleCheckResult, Probe
from toposcope.report.blocks import Column, Listing, Page
from toposcope.report.views import check

_COLUMNS = (Column("name", "probe", "plain"), Column("ran", "ran", "plain"), Column("detail", "how", "wrap"))


def view(result: ModuleCheckResult, page: Page) -> None:
    """Add the sections of the check of a module."""
    page.title = page.title or f"Check of {result.module}"
    check.view(result, page)
    probes(result.probes, page)


def probes(ran: Sequence[Probe], page: Page) -> None:
    """Add the section of the probes."""
    table = page.rows("probes", [asdict(probe) for probe in ran])
    words = "A probe that did not run says what it would need."
    page.add("What was tried", Listing("Probes", words, table, _COLUMNS), detail=True)
