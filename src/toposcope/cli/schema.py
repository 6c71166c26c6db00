"""`toposcope schema [NAME]`: the JSON Schema of what --json writes."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import console
from toposcope.cli.deliver import write

# kinds of results that are not named after their command
WRITTEN_BY = {
    "ablate-check": "toposcope ablate --check --json",
    "check-against": "toposcope check A --against B --json",
    "check-module": "toposcope.check_module(...).save",
    "lab-ablate": "toposcope ablate RUN/model --json",
    "run": "toposcope runs show KEY --json",
}


def run(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A kind of result, as scan or toposcope/loss/2.", show_default=False),
    ] = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a kind of result; without a name, list the kinds."""
    from toposcope.core.result import json_text
    from toposcope.report import kinds

    if name is not None:
        write(json_text(kinds.document(name), indent=2), "-")
        return
    for each in kinds.KINDS:
        console().print(f"{each:14s} {WRITTEN_BY.get(each, f'toposcope {each} --json')}", soft_wrap=True)
