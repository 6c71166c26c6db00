"""The view of `cite`: a paragraph for each work."""

from __future__ import annotations

from toposcope.core.citation import CiteResult
from toposcope.report.blocks import Page, Paragraphs


def view(result: CiteResult, page: Page) -> None:
    """Add the works."""
    page.add("What to cite", Paragraphs(tuple(work.text() for work in result.works)))
