"""`toposcope serve`: the local web page."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from toposcope.cli.common import console


def run(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL|RESULT.json", help="Models to explore, and results written with --json."),
    ] = None,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0: the next free one.")] = 8123,
    store: Annotated[str, typer.Option("--store", metavar="DIR", help="The runs to show.")] = "runs",
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Where to listen; this machine only, unless given."),
    ] = "127.0.0.1",
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Serve every user of this machine, without a token in the address.")
    ] = False,
) -> None:
    """Explore encodings, token flow and heads in a browser, and look at runs and results.

    The page is served to this machine only, unless --host says otherwise; it asks no other machine for anything.
    The address that is printed holds a token: whoever has it can use the page.
    """
    if "numpy" not in sys.modules:
        # Matrices are small and requests run in parallel: threads inside BLAS would only get in the way.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from toposcope.web.server import Address, is_loopback, opened, serve

    out = console()

    browser = contextlib.ExitStack()

    def started(address: Address) -> None:
        out.print(f"Toposcope is at [bold]{address.url}[/bold]", soft_wrap=True)
        if not is_loopback(address.host):
            out.print("Other machines can reach it; whoever has this address can use it. It is not encrypted.")
        out.print("Ctrl-C ends it.")
        if open_it:
            browser.enter_context(opened(address))

    with browser:
        serve(list(targets or []), host=host, port=port, store=Path(store), token=not no_token, started=started)
    out.print("Stopped.")
