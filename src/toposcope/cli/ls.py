"""`toposcope ls models|families|encodings`: what Toposcope knows."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from toposcope.cli.common import JsonOption, console


class What(StrEnum):
    models = "models"
    families = "families"
    encodings = "encodings"


def run(
    what: Annotated[What, typer.Argument(help="What to list.")] = What.models,
    json: JsonOption = None,
) -> None:
    """List the models found in installed packages, the families that can be read, or the encodings."""
    rows, columns, note = {What.models: _models, What.families: _families, What.encodings: _encodings}[what]()
    if json:
        from toposcope.results import emit_json, envelope

        emit_json(envelope("ls", {what.value: rows}, about=None, options={"what": what.value}, seconds=0.0), json)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    out = console()
    out.print(table)
    out.print(f"\n{note}")


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(entry) for entry in value)
    return "" if value is None else str(value)


def _models() -> tuple[list[dict[str, Any]], list[str], str]:
    from toposcope.checkpoints.installed import MODELS

    rows = [
        {
            "name": entry.name,
            "about": entry.description,
            "ready": "yes" if entry.path() is not None else entry.install,
        }
        for entry in MODELS
    ]
    return rows, ["name", "about", "ready"], "Use a name wherever MODEL is asked for: toposcope inspect smollm2"


def _families() -> tuple[list[dict[str, Any]], list[str], str]:
    from toposcope.checkpoints.families import families

    rows = [
        {"family": family.name, "reads": list(family.model_types), "about": family.about}
        for family in families().values()
    ]
    return rows, ["family", "reads", "about"], "Force one with --family NAME."


def _encodings() -> tuple[list[dict[str, Any]], list[str], str]:
    from toposcope.encodings import kinds

    rows = [
        {
            "encoding": kind.name,
            "aliases": list(kind.aliases),
            "parameters": [parameter.name for parameter in kind.parameters],
            "about": kind.summary,
        }
        for kind in kinds().values()
    ]
    return rows, ["encoding", "about", "parameters"], "Parameters are written rope:base=500000,scaling=yarn,factor=8"
