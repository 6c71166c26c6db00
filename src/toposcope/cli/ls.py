"""`toposcope ls models|families|encodings|tasks|texts|bugs`: what Toposcope knows, and which package it is from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from toposcope.cli.common import CsvOption, JsonOption
from toposcope.cli.deliver import deliver

if TYPE_CHECKING:
    from toposcope.lab.known import Lists


def run(
    what: Annotated[
        str, typer.Argument(metavar="LIST", help="models, families, encodings, tasks, texts or bugs.")
    ] = "models",
    json: JsonOption = None,
    csv: CsvOption = None,
) -> None:
    """List models and texts of installed packages, families that can be read, encodings, tasks, or known bugs."""
    from toposcope.lab.known import ls

    deliver(ls(cast("Lists", what)), json=json, csv=csv)
