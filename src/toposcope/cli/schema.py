"""`toposcope schema [NAME]`: the JSON Schema of what --json writes."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import console


def run(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A kind of result, as scan or toposcope/scan/1.", show_default=False),
    ] = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a kind of result; without a name, list the kinds."""
    from toposcope.core.results import emit_json
    from toposcope.schema import NAMES, WRITTEN_BY, document

    if name is not None:
        emit_json(document(name), "-")
        return
    out = console()
    for each in NAMES:
        out.print(f"{each:14s} toposcope {WRITTEN_BY.get(each, each)} --json", soft_wrap=True)
