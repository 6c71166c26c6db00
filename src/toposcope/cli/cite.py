"""`toposcope cite`: Toposcope and the papers it builds on, for a list of references."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import JsonOption
from toposcope.cli.deliver import write


def run(
    bibtex: Annotated[bool, typer.Option("--bibtex", help="As entries of a BibTeX file.")] = False,
    json: JsonOption = None,
) -> None:
    """Print what to cite. The papers behind an encoding are in 'toposcope.encodings.PAPERS'."""
    from toposcope.core.citation import CiteResult

    result = CiteResult()
    if json:
        write(result.json(), json)
    if json != "-":
        typer.echo("\n\n".join(work.bibtex() if bibtex else work.text() for work in result.works))
