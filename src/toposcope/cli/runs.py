"""`toposcope runs ls|show|rm|export`: what a store of runs holds."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from toposcope.cli.common import CsvOption, HtmlOption, JsonOption, console, safe
from toposcope.cli.deliver import deliver
from toposcope.cli.lab_options import StoreOption


def run(
    action: Annotated[
        Literal["ls", "show", "rm", "export"], typer.Argument(help="ls; show KEY; rm KEY...; export FILE.")
    ] = "ls",
    names: Annotated[
        list[str] | None, typer.Argument(metavar="KEY|FILE", help="Keys may be shortened.", show_default=False)
    ] = None,
    store: StoreOption = "runs",
    status: Annotated[
        str | None, typer.Option("--status", metavar="WORD", help="Only queued, running, done or failed ones.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
) -> None:
    """List, show, remove or export (.csv or .json) the runs of train and sweep."""
    from toposcope.runs.listing import list_runs, show_run

    given = names or []
    if action == "rm":
        _need(bool(given), "rm takes the keys of the runs to remove: 'toposcope runs rm 1f3a 77b0'")
        _remove(store, given, yes)
    elif action == "show":
        _need(len(given) == 1, "show takes one key, or its beginning: 'toposcope runs show 1f3a'")
        deliver(show_run(given[0], store), json=json, html=html)
    elif action == "export":
        _need(len(given) == 1, "export takes the name of a file: 'toposcope runs export runs.csv'")
        (where,) = given
        _need(where == "-" or where.endswith((".csv", ".json")), f"'{where}' must end in .csv or .json, or be '-'")
        as_csv = where.endswith(".csv")
        deliver(list_runs(store, status=status), csv=where if as_csv else None, json=None if as_csv else where)
    else:
        _need(not given, "ls takes no names; 'toposcope runs show KEY' shows one run")
        deliver(list_runs(store, status=status), json=json, csv=csv, html=html)


def _need(fine: bool, sentence: str) -> None:
    from toposcope.core.errors import BadValue

    if not fine:
        raise BadValue(f"{sentence}.")


def _remove(place: str, names: list[str], yes: bool) -> None:
    from toposcope.runs.store import Store
    from toposcope.runs.words import title

    out = console()
    with Store(place, create=False) as store:
        store.repair()
        rows = {row.key: row for row in map(store.find, names)}
        if not yes:
            for row in rows.values():
                out.print(f"{row.key}  {row.status:8s} {safe(title(row.config))}", soft_wrap=True)
            _need(sys.stdin.isatty(), "removing runs needs a yes, and there is nobody to ask here. Add --yes")
            if not typer.confirm(f"Remove {len(rows)} run{'s' * (len(rows) > 1)} for good?"):
                raise typer.Exit(1)
        for row in rows.values():
            store.remove(row.key)
            out.print(f"removed {row.key}  {safe(title(row.config))}", soft_wrap=True)
