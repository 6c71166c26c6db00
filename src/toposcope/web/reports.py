"""Reports under the server's roof: rendered by `toposcope.report`, allowed to run Toposcope's own code and no other.

A report is one file with its styles and scripts inside. The Content-Security-Policy names each of them by its
hash, taken from the files we ship and never from the page, so nothing that a result's words might smuggle in would
run; `sandbox` keeps a report from reading anything else here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import UndefinedError

from toposcope.core.errors import BadFile, ToposcopeError
from toposcope.report.page import SCRIPTS, STYLE, asset, policy

_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ImportError, UndefinedError)
POLICY = (
    policy([asset(name) for name in SCRIPTS], [asset(STYLE)])
    + "; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
)


def words_of(result: Mapping[str, Any]) -> str | None:
    """A result as a terminal shows it; None for one that this version cannot read."""
    from toposcope.report import drawing
    from toposcope.report.kinds import from_dict

    try:
        return drawing.text(from_dict(result))
    except (ToposcopeError, *_UNREADABLE):
        return None


def title_of(result: Mapping[str, Any]) -> str | None:
    """What the report of a result is called; None for one that this version cannot read."""
    from toposcope.report import drawing
    from toposcope.report.kinds import from_dict

    try:
        return drawing.title(from_dict(result))
    except (ToposcopeError, *_UNREADABLE):
        return None


def report_of(result: Mapping[str, Any]) -> str:
    """The report of a result, as one HTML file."""
    from toposcope.report import render

    try:
        return render([result])
    except _UNREADABLE as error:
        words = f"this result cannot be shown as a report ({type(error).__name__}: {str(error)[:200]})."
        raise BadFile(f"{words} Was it written by this version, with --json?") from error
