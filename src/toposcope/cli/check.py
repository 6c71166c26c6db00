"""`toposcope check MODEL`: is the positional encoding really there, in force, and of one kind?"""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import (
    AdapterOption,
    CsvOption,
    FamilyOption,
    HtmlOption,
    JsonOption,
    ModelArgument,
    NumHeadsOption,
    WeightsOption,
)
from toposcope.cli.deliver import deliver, watched


def run(
    model: ModelArgument,
    family: FamilyOption = None,
    num_heads: NumHeadsOption = None,
    adapter: AdapterOption = None,
    weights: WeightsOption = True,
    live: Annotated[
        bool, typer.Option("--live", help="Run it too: does it do what its configuration says? (needs [hf])")
    ] = False,
    probes: Annotated[
        str | None,
        typer.Option(
            "--probes", metavar="NAMES", help="With --live, of fit,precision,parity,lengths,axes.", show_default="all"
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option("--dtype", metavar="NAME", help="With --live: float32, bfloat16, float16, or the files' own."),
    ] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failure too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Explain what is in order too.")] = False,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
) -> None:
    """Test a checkpoint's positional encoding; exit code 1 when a fault is found (with --strict, a warning).

    With --live the model is run, and what it does to queries, keys and logits is compared with what it should do.
    """
    from toposcope.live.check import check

    with watched() as progress:
        result = check(
            model, live=live, probes=probes.split(",") if probes else None, family=family, num_heads=num_heads,
            adapter=adapter, weights=weights, dtype=dtype, progress=progress,
        )  # fmt: skip
    deliver(result, json=json, csv=csv, html=html, full=verbose)
    if result.worst == "fault" or (strict and result.worst == "warning"):
        raise typer.Exit(1)
