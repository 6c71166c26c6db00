"""Options that train, sweep, runs and reproduce share."""

from __future__ import annotations

from typing import Annotated

import typer

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
LabDeviceOption = Annotated[
    str,
    typer.Option(
        "--device", metavar="cpu|cuda[:n]|mps|auto", help="Where models are trained (cuda: all GPUs in turn)."
    ),
]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, help="Runs at a time (default: one per core).")
]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, hidden=True)]  # the old name of --jobs
