"""`toposcope sweep`: tasks x encodings x seeds, on the cores of this machine or on a Ray cluster."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from toposcope.cli.common import CsvOption, FigureOption, HtmlOption, JsonOption
from toposcope.cli.deliver import check_names, deliver, watched
from toposcope.cli.lab_options import (
    JobsOption,
    LabDeviceOption,
    ProfileOption,
    QuirkOption,
    SetOption,
    StoreOption,
    ThreadsOption,
    VariantOption,
    WorkersOption,
)


def run(
    tasks: Annotated[
        list[str], typer.Option("--tasks", metavar="A,B", help="distance, count, previous, copy, reverse, ...")
    ],
    encodings: Annotated[
        list[str],
        typer.Option("--encodings", "--encoding", metavar="A,B", help="rope,none,...; use ';' where in doubt."),
    ],
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N|LIST", help="How many (5: 0 to 4), or which: 0-4,7.")
    ] = "3",
    profile: ProfileOption = "laptop-s",
    variant: VariantOption = "described",
    quirk: QuirkOption = None,
    settings: SetOption = None,
    engine: Annotated[Literal["local", "ray"], typer.Option("--engine", help="Where the work is done.")] = "local",
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", metavar="HOST:PORT", help="The cluster (default: one of our own).")
    ] = None,
    jobs: JobsOption = None,
    workers: WorkersOption = None,
    threads: ThreadsOption = 1,
    device: LabDeviceOption = "cpu",
    gpus_per_run: Annotated[
        float | None,
        typer.Option("--gpus-per-run", metavar="X", min=0.0, help="GPUs of each run on Ray (.25: four share one)."),
    ] = None,
    retries: Annotated[int, typer.Option("--retries", metavar="N", min=0, help="Retries per failed run.")] = 2,
    store: StoreOption = "runs",
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Train every task with every encoding and seed. Stop it at any time; the same command does what is left."""
    from toposcope.runs.sweep import sweep

    check_names(figure)
    with watched() as progress:
        result = sweep(
            tasks, encodings, seeds=seeds, profile=profile, variant=variant, quirks=quirk or (),
            settings=settings or (), engine=engine, ray_address=ray_address, jobs=jobs or workers, threads=threads,
            device=device, gpus_per_run=gpus_per_run, retries=retries, store=store, progress=progress,
        )  # fmt: skip
    deliver(result, json=json, csv=csv, html=html, figure=figure)
    if result.skipped:
        raise typer.Exit(1)
