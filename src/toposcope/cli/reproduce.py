"""`toposcope reproduce`: the papers' claims, what the released code does, what comes out here, and the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toposcope.cli.common import CsvOption, FigureOption, HtmlOption, JsonOption, console
from toposcope.cli.deliver import check_names, deliver, watched
from toposcope.cli.lab_options import JobsOption, LabDeviceOption, StoreOption, WorkersOption


def run(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="coupling; dynamics; a study by its own rules: contraction, convergence, counting, deposit, depth, "
            "logit-scale, mla, one-head, position-tasks, refinements, regimes, simulated-regimes, timing; or a file "
            "of rules (.toml).",
        ),
    ],
    size: Annotated[
        str, typer.Option("--size", metavar="NAME", help="demo; full: more seeds; dynamics also: facts.")
    ] = "demo",
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N|LIST", help="How many (5: 0 to 4), or which: 0-4,7.")
    ] = None,
    jobs: JobsOption = None,
    workers: WorkersOption = None,
    device: LabDeviceOption = "cpu",
    store: StoreOption = "runs",
    markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="The page (default: into the store).")
    ] = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Put a paper's claims to the test. Many small models are trained; stop it at any time and go on later."""
    from toposcope.core.files import write_text
    from toposcope.studies.reproduce.page import page
    from toposcope.studies.reproduce.reproduce import FACTS, reproduce

    check_names(figure)
    with watched() as progress:
        result = reproduce(
            what, size=size, seeds=seeds, jobs=jobs or workers, device=device, store=store, progress=progress
        )
    if markdown is None and size != FACTS:
        markdown = str(Path(store) / f"reproduce-{result.what}.md")
    if markdown is not None:
        write_text(Path(markdown), page(result))
    deliver(result, json=json, csv=csv, html=html, figure=figure)
    if markdown is not None and "-" not in (json, csv, html):
        console().print(f"Written: {markdown}", soft_wrap=True)
