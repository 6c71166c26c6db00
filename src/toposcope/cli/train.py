"""`toposcope train`: one small model on one task, kept as a run that can be stopped and resumed at any time."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from toposcope.cli.common import CsvOption, FigureOption, HtmlOption, JsonOption
from toposcope.cli.deliver import check_names, deliver, watched
from toposcope.cli.lab_options import (
    LabDeviceOption,
    ProfileOption,
    QuirkOption,
    SetOption,
    StoreOption,
    ThreadsOption,
    VariantOption,
)


def run(
    task: Annotated[
        str,
        typer.Option(
            "--task", metavar="NAME", help="distance, count, previous, copy, reverse, induction, index, dyck."
        ),
    ],
    encoding: Annotated[str, typer.Option("--encoding", metavar="NAME", help="'toposcope ls encodings' lists them.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Random seed of weights and sentences.")] = 0,
    profile: ProfileOption = "laptop-s",
    variant: VariantOption = "described",
    quirk: QuirkOption = None,
    settings: SetOption = None,
    threads: ThreadsOption = 1,
    device: LabDeviceOption = "cpu",
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Keep the run here, outside any store.")
    ] = None,
    store: StoreOption = "runs",
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Train a small model on one task. Stopped or killed, it goes on where it was when called again."""
    from toposcope.runs.local import THREADS

    if "numpy" not in sys.modules:  # BLAS reads them when it is loaded
        os.environ.update(dict.fromkeys(THREADS, str(threads)))
    from toposcope.runs.training import train

    check_names(figure)
    with watched() as progress:
        result = train(
            task, encoding, seed=seed, profile=profile, variant=variant, quirks=quirk or (), settings=settings or (),
            threads=threads, device=device, out=out, store=store, progress=progress,
        )  # fmt: skip
    deliver(result, json=json, csv=csv, html=html, figure=figure)
