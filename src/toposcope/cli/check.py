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
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failure too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Explain what is in order too.")] = False,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
) -> None:
    """Test a checkpoint's positional encoding; exit code 1 when a fault is found (with --strict, a warning)."""
    from toposcope.live.check import check

    with watched() as progress:
        result = check(model, family=family, num_heads=num_heads, adapter=adapter, weights=weights, progress=progress)
    deliver(result, json=json, csv=csv, html=html, full=verbose)
    if result.worst == "fault" or (strict and result.worst == "warning"):
        raise typer.Exit(1)
