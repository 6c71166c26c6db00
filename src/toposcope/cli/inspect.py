"""`toposcope inspect MODEL`: architecture, encoding per layer, head table, what was skipped."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import (
    AdapterOption,
    CsvOption,
    FamilyOption,
    HtmlOption,
    JsonOption,
    LayersOption,
    ModelArgument,
    NumHeadsOption,
    WeightsOption,
    console,
)
from toposcope.cli.deliver import deliver, watched


def run(
    model: ModelArgument,
    layers: LayersOption = None,
    head_table: Annotated[
        bool, typer.Option("--head-table", help="Print every head, however many there are.")
    ] = False,
    family: FamilyOption = None,
    num_heads: NumHeadsOption = None,
    adapter: AdapterOption = None,
    weights: WeightsOption = True,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
) -> None:
    """Show what a checkpoint is made of: its layers, how each encodes position, its heads, and what was not read."""
    from toposcope.checkpoints.inspect import inspect
    from toposcope.checks import check_files
    from toposcope.report.views.inspect import FEW

    with watched() as progress:
        result = inspect(
            model,
            layers=layers,
            family=family,
            num_heads=num_heads,
            adapter=adapter,
            weights=weights,
            progress=progress,
        )
        checked = []
        if html:
            checked.append(
                check_files(
                    model, family=family, num_heads=num_heads, adapter=adapter, weights=weights, progress=progress
                )
            )
    deliver(result, json=json, csv=csv, html=html, beside=checked, full=head_table)
    if len(result.heads) > FEW and not head_table and "-" not in (json, csv, html):
        console().print(f"{len(result.heads)} heads: --head-table prints each, --csv and --json write them.")
