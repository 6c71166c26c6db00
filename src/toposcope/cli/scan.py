"""`toposcope scan MODEL`: where do these weights drive the tokens, head by head?"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from toposcope.cli.common import (
    AdapterOption,
    CsvOption,
    FamilyOption,
    FigureOption,
    FullOption,
    HtmlOption,
    JsonOption,
    ModelArgument,
    NumHeadsOption,
)
from toposcope.cli.deliver import check_names, deliver, watched


def run(
    model: ModelArgument,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="0-3,7", help="Only these layers; sample:12 draws twelve and estimates."),
    ] = None,
    full: FullOption = False,
    encoding: Annotated[
        list[str] | None,
        typer.Option("--encoding", metavar="NAME", help="Also with this encoding in place; may be repeated."),
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", metavar="128k", help="Context for kernels (default: the model's).")
    ] = None,
    random_baseline: Annotated[
        bool, typer.Option("--random-baseline", help="Compare with the same heads in random orientation.")
    ] = False,
    layer_sums: Annotated[
        bool | None,
        typer.Option("--layer-sums/--no-layer-sums", help="Also analyse each layer as a whole (slow when wide)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 0,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Keep each finished layer there: a stopped scan continues."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", min=1, help="Cores to use, or layers at once on a cluster.")
    ] = None,
    engine: Annotated[Literal["local", "ray"], typer.Option("--engine", help="Where the work is done.")] = "local",
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", metavar="HOST:PORT", help="The cluster (default: one of our own).")
    ] = None,
    family: FamilyOption = None,
    num_heads: NumHeadsOption = None,
    adapter: AdapterOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """From the weights alone: are tokens driven together or apart, to zero or to infinity; which theorem says so?"""
    if "numpy" not in sys.modules:
        # Matrices here are small and heads are decided in parallel: threads inside BLAS would only get in the way.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from toposcope.checks import check_files
    from toposcope.scanning.scan import scan

    check_names(figure)
    with watched() as progress:
        result = scan(
            model, layers=layers, encoding=encoding or (), context=context, layer_sums=layer_sums,
            random_baseline=random_baseline, seed=seed, out=out, jobs=jobs, engine=engine, ray_address=ray_address,
            family=family, num_heads=num_heads, adapter=adapter, progress=progress,
        )  # fmt: skip
    findings = [check_files(model, family=family, num_heads=num_heads, adapter=adapter)] if html else []
    deliver(result, json=json, csv=csv, html=html, figure=figure, full=full, beside=findings)
