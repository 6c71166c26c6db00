"""`toposcope compare A B`: two checkpoints, or two stored results of one kind, head by head."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from toposcope.cli.common import (
    CsvOption,
    FamilyOption,
    FigureOption,
    FullOption,
    HtmlOption,
    JsonOption,
    LayersOption,
    NumHeadsOption,
)
from toposcope.cli.deliver import check_names, deliver, watched
from toposcope.core.files import present


def run(
    a: Annotated[
        str, typer.Argument(metavar="A", help="A model, or a .json file that a command wrote.", show_default=False)
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one, of the same kind.", show_default=False)],
    layers: LayersOption = None,
    full: FullOption = False,
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Threads.")] = None,
    family: FamilyOption = None,
    num_heads: NumHeadsOption = None,
    adapter: Annotated[
        str | None, typer.Option("--adapter", metavar="DIR|NAME", help="Merge this adapter of PEFT into B.")
    ] = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Before and after fine-tuning: how far did each head's Q'K and O V move, and does its verdict still stand?

    'compare BASE BASE --adapter DIR' says what an adapter changed: it is merged into the second model.
    Exit code 0 whether or not the two differ; what differs is in the output.
    """
    if "numpy" not in sys.modules:  # matrices are small: threads inside BLAS would only get in the way
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from toposcope.scanning.compare import compare

    check_names(figure)
    with watched() as progress:
        result = compare(
            _given(a),
            _given(b),
            layers=layers,
            jobs=jobs,
            family=family,
            num_heads=num_heads,
            adapter=adapter,
            progress=progress,
        )
    deliver(result, json=json, csv=csv, html=html, figure=figure, full=full)


def _given(name: str) -> Any:
    """A stored result of any kind as such; a model's name as it is."""
    if not (Path(name).suffix == ".json" and present(name) and Path(name).is_file()):
        return name
    from toposcope.report.kinds import read

    return read(name)
