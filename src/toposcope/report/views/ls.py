"""The view of `ls`: names, what they stand for, and a line to paste."""

from __future__ import annotations

from toposcope.lab.known import LsResult
from toposcope.report.blocks import Column, Listing, Page, Paragraphs

_DETAILS = {"families": "reads", "encodings": "parameters", "tasks": "sizes"}


def view(result: LsResult, page: Page) -> None:
    """Add the list."""
    title = result.what.capitalize()
    page.title = page.title or "What Toposcope knows"
    rows = [
        {
            "name": each.name,
            "about": each.about,
            "details": ", ".join(each.details),
            "aliases": ", ".join(each.aliases),
            "origin": each.origin,
            "ready": "yes" if each.ready else each.install,
        }
        for each in result.names
    ]
    columns = [Column("name", result.what.removesuffix("s").replace("familie", "family"), "plain")]
    columns.append(Column("about", "about", "wrap"))
    if result.what in _DETAILS:
        columns.append(Column("details", _DETAILS[result.what], "wrap"))
        if len({each.origin for each in result.names}) > 1:
            columns.append(Column("origin", "from", "plain"))
    else:
        columns.append(Column("ready", "ready", "wrap"))
    listing = Listing(title, "", page.rows(result.what, rows), tuple(columns), top=1000)
    page.add(title, listing, Paragraphs((advice(result),)))


def advice(result: LsResult) -> str:
    """What to do with a name, as a line that works when pasted."""
    first = next((each for each in result.names if each.ready), result.names[0])
    if not first.ready:
        return f"None is installed yet: {first.install}"
    return {
        "models": f"Use a name wherever MODEL is asked for: toposcope inspect {first.name}",
        "texts": f"Use a name wherever a text is asked for: toposcope loss smollm2 --text {first.name}",
        "families": "To read a file as one of them: toposcope inspect MODEL --family NAME",
        "encodings": "With parameters: toposcope spectrum rope:base=500000,scaling=yarn,factor=8",
        "tasks": f"Train on one: toposcope train --task {first.name} --encoding rope",
    }[result.what]
