"""`toposcope ls models|families|encodings|texts`: what Toposcope knows."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import JsonOption, console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toposcope.checkpoints.installed import Item


class What(StrEnum):
    models = "models"
    families = "families"
    encodings = "encodings"
    texts = "texts"


def run(
    what: Annotated[What, typer.Argument(help="What to list.")] = What.models,
    json: JsonOption = None,
) -> None:
    """List models and texts found in installed packages, the families that can be read, or the encodings."""
    listing = {
        What.models: _models,
        What.families: _families,
        What.encodings: _encodings,
        What.texts: _texts,
    }
    rows, columns, note = listing[what]()
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

    note = "Use a name wherever MODEL is asked for: toposcope inspect smollm2"
    return _items(MODELS), ["name", "about", "ready"], note


def _texts() -> tuple[list[dict[str, Any]], list[str], str]:
    from toposcope.checkpoints.installed import TEXTS

    return _items(TEXTS), ["name", "about", "ready"], "Use a name wherever a text is asked for: --text wiki"


def _items(items: Sequence[Item]) -> list[dict[str, Any]]:
    return [
        {
            "name": item.name,
            "about": item.description,
            "ready": "yes" if item.path() is not None else item.install,
        }
        for item in items
    ]


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
