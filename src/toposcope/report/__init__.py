"""Results to look at: one view of each kind, drawn on a terminal, as a page, in a notebook, and as a figure."""

from __future__ import annotations

from toposcope.report.drawing import page as render
from toposcope.report.kinds import KINDS, document, read, read_results

__all__ = ["KINDS", "document", "read", "read_results", "render"]
