"""`toposcope report RESULT...`: stored results as one HTML file, or as a figure."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import FigureOption, JsonOption, console
from toposcope.cli.deliver import check_names, write

# What a stored result with parts missing or changed makes a page raise.
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def run(
    results: Annotated[
        list[str],
        typer.Argument(metavar="RESULT...", help="Files that --json wrote, or run directories.", show_default=False),
    ],
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Where to write the report.", show_default="toposcope-report.html"
        ),
    ] = None,
    figure: FigureOption = None,
    json: JsonOption = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="The report's heading.")] = None,
) -> None:
    """Render stored results again: several results, of one command or of many, become one self-contained page."""
    from jinja2 import TemplateError

    from toposcope.core.errors import BadFile
    from toposcope.core.result import json_text
    from toposcope.report import drawing
    from toposcope.report.kinds import read_results

    check_names(figure)
    found = read_results(results)
    if html is None and figure is None and json is None:
        html = "toposcope-report.html"
    if json:
        data = [each.as_dict() for each in found]
        write(json_text(data[0] if len(data) == 1 else data, indent=2), json)
    try:
        if html:
            write(drawing.page(found, title), html)
        if figure:
            drawing.draw(found[-1], figure)
    except (*_DAMAGE, TemplateError) as error:
        raise BadFile(
            f"{', '.join(results)} cannot be shown as a report ({type(error).__name__}: {str(error)[:200]}). Was it "
            "written by this version, with --json, and not changed since? Make it again."
        ) from error
    for name in filter(None, (html, figure)):
        console(to_stderr="-" in (json, html)).print(f"Written: {name}", soft_wrap=True)
