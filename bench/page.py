"""What was measured, as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.row import table

HEAD = """# How fast it is

Every row compares our work with a peer's, or with a bound below which it cannot go; ours and the peer's are measured
in turns in one run, on one thread, and the medians of processor time are shown. Trust ratios, not times. Packages of
others have an environment of their own (`make peers`). This page is written by `make bench`; each group is one run,
and one that was not measured is not on it. Where a goal is not met, the reason is below the table, with the bound.
"""


def page(measured: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for group in measured["groups"]:
        spread = group["spread"]
        said = "" if spread is None else f"Half of the quartile range is at most {spread:.0%} of a median here.\n\n"
        parts.append(f"## {group['name'].replace('_', ' ').capitalize()}\n\n{said}{table(group['rows'])}\n")
    rows = [row for group in measured["groups"] for row in group["rows"] if row.met is not None]
    met = sum(bool(row.met) for row in rows)
    parts.append(
        f"**{met} of {len(rows)} goals are met.** Toposcope {measured['toposcope']}, {measured['machine']}.\n"
    )
    return "\n".join(parts)
