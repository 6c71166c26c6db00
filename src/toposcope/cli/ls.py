"""`toposcope ls models|families|encodings|tasks|texts`: what Toposcope knows, and which package it is from."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import JsonOption, console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toposcope.checkpoints.installed import InstalledItem


class What(StrEnum):
    models = "models"
    families = "families"
    encodings = "encodings"
    tasks = "tasks"
    texts = "texts"


def run(
    what: Annotated[What, typer.Argument(help="What to list.")] = What.models,
    json: JsonOption = None,
) -> None:
    """List models and texts found in installed packages, families that can be read, encodings, or tasks."""
    listing = {
        What.models: _models,
        What.families: _families,
        What.encodings: _encodings,
        What.tasks: _tasks,
        What.texts: _texts,
    }
    rows, columns, note = listing[what]()
    if json:
        from toposcope.core.results import emit_json, envelope

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


def _items(items: Sequence[InstalledItem]) -> list[dict[str, Any]]:
    return [
        {
            "name": item.name,
            "about": item.description,
            "ready": "yes" if item.path() is not None else item.install,
        }
        for item in items
    ]


def _families() -> tuple[list[dict[str, Any]], list[str], str]:
    from toposcope.checkpoints.families import families, family_origins

    origin = family_origins()
    rows = [
        {"family": each.name, "reads": list(each.model_types), "about": each.about, "origin": origin[each.name]}
        for each in families().values()
    ]
    return rows, ["family", "reads", "about", *_origin_if_any(rows)], "Force one with --family NAME."


def _encodings() -> tuple[list[dict[str, Any]], list[str], str]:
    from toposcope.encodings.registry import kind_origins, kinds

    origin = kind_origins()
    rows = [
        {
            "encoding": kind.name,
            "aliases": list(kind.aliases),
            "parameters": [parameter.name for parameter in kind.parameters],
            "about": kind.summary,
            "origin": origin[kind.name],
        }
        for kind in kinds().values()
    ]
    columns = ["encoding", "about", "parameters", *_origin_if_any(rows)]
    return rows, columns, "Parameters are written rope:base=500000,scaling=yarn,factor=8"


def _tasks() -> tuple[list[dict[str, Any]], list[str], str]:
    from toposcope.lab.tasks import task_kinds, task_origins

    origin = task_origins()
    rows = [
        {"task": name, "about": kind.summary, "sizes": list(kind.profiles), "origin": origin[name]}
        for name, kind in task_kinds().items()
    ]
    return rows, ["task", "about", "sizes", *_origin_if_any(rows)], "Train on one: toposcope train --task distance"


def _origin_if_any(rows: list[dict[str, Any]]) -> list[str]:
    """The column of packages, where more than one brings something."""
    return ["origin"] if len({row["origin"] for row in rows}) > 1 else []
