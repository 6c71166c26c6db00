"""What train, sweep and runs share: their options, and how a run and an accuracy are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from toposcope.core.ranges import computable

REMOVE_RESULT = "Remove the run it is about ('toposcope runs rm KEY', or its result.json), and give this again."
StoreOption = Annotated[str, typer.Option("--store", metavar="DIR", help="Directory that keeps the runs.")]
ProfileOption = Annotated[
    str, typer.Option("--profile", metavar="NAME", help="Size and training: laptop-s, laptop-m, published, paper.")
]
VariantOption = Annotated[
    str,
    typer.Option("--variant", metavar="NAME", help="described, or published (with the released scripts' quirks)."),
]
QuirkOption = Annotated[
    list[str] | None,
    typer.Option("--quirk", metavar="NAME", help="Switch one quirk on, or off with a minus before it."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting: steps=200, width=32, task.between=10."),
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", metavar="N", min=1, help="Threads per run; other numbers change the last digits.")
]


def changes(settings: list[str] | None, quirks: list[str] | None) -> dict[str, Any]:
    """The settings a user gave, as fields of a run's configuration."""
    from toposcope.runs.grid import read_changes

    return read_changes(settings or []) | ({"quirks": tuple(quirks)} if quirks else {})


def percent(value: float | None) -> str:
    """An accuracy, to a tenth of a percent."""
    return f"{100 * value:.1f} %" if isinstance(value, int | float) and computable(value) else "-"


def duration(seconds: float | None) -> str:
    """A time as a person would say it: 21 s, 3 min 20 s, 2 h 05 min."""
    if not isinstance(seconds, int | float) or not computable(seconds):
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def title(config: Mapping[str, Any]) -> str:
    """A run in a few words."""
    cell = f"  {config['cell']}" if "cell" in config else ""
    return f"{config.get('task', '?')}  {config.get('encoding', '?')}{cell}  seed {config.get('seed', '?')}"


def cut(text: str, width: int) -> str:
    """The text, or its beginning where it is longer."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
