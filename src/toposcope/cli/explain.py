"""`toposcope explain [ERROR]`: what brings an error about, and what helps; without a name, the kinds there are."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from toposcope.cli.common import console


def run(
    name: Annotated[
        str | None, typer.Argument(metavar="[ERROR]", help="Its name, as BadFile; without it, all are listed.")
    ] = None,
) -> None:
    """Print the page of an error: how it looks, its cause, its cure. Without a name, list the kinds of errors."""
    from toposcope.core.errors import kinds, page

    out = console()
    if name is not None:
        out.print(page(name).replace("**", ""), markup=False)
        return
    wide = max(map(len, kinds())) + 2
    for kind, words in kinds().items():
        lines = textwrap.wrap(words, max(out.width - wide, 20))
        out.print(kind.ljust(wide) + f"\n{' ' * wide}".join(lines), markup=False, soft_wrap=True)
    out.print("\nOne of them in full: toposcope explain BadFile", markup=False)
