"""`toposcope cite`: Toposcope and the papers it builds on, for a list of references."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import JsonOption


def run(
    bibtex: Annotated[bool, typer.Option("--bibtex", help="As entries of a BibTeX file.")] = False,
    json: JsonOption = None,
) -> None:
    """Print what to cite. The papers behind an encoding are in 'toposcope.encodings.PAPERS'."""
    from toposcope.core.citation import WORKS

    if json:
        from toposcope.core.results import emit_json, envelope

        emit_json(envelope("cite", {"works": WORKS}, about=None, options={}, seconds=0.0), json)
    if json != "-":
        typer.echo("\n\n".join(work.bibtex() if bibtex else work.text() for work in WORKS))
