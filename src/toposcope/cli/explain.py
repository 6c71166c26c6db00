"""`toposcope explain ERROR`: what brings an error about, and what helps."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import console


def run(
    name: Annotated[str, typer.Argument(metavar="ERROR", help="Its name, as BadFile.", show_default=False)],
) -> None:
    """Print the page of an error: how it looks, its cause, its cure."""
    from toposcope.core.errors import page

    console().print(page(name).replace("**", ""), markup=False)
