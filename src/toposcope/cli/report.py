"""`toposcope report RESULT...`: stored results as one HTML file, or as a figure."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import FigureOption, JsonOption, console


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
    from toposcope.cli.pictures import checked_figure, write_pictures
    from toposcope.report import read_results
    from toposcope.results import emit_json

    checked_figure(figure)
    found = read_results(results)
    if html is None and figure is None and json is None:
        html = "toposcope-report.html"
    if json:
        emit_json(found[0] if len(found) == 1 else found, json)
    for name in write_pictures(found, html, figure, title=title):
        console(to_stderr=json == "-").print(f"Written: {name}", soft_wrap=True)
