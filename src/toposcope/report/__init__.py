"""Reports: one self-contained HTML file from one or more results; and figures for papers.

A report is a pure function of results as `toposcope.core.results.envelope` makes them, so `--html` and
`toposcope report STORED.json` give the same file.
"""

from __future__ import annotations

from toposcope.report.render import SCHEMAS, read_results, render, write_report

__all__ = ["SCHEMAS", "read_results", "render", "write_report"]
