"""`toposcope refine MODEL --out DIR`: add the diagonal to a trained rotary model, tune it, and say what it buys."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from toposcope.cli.common import (
    BatchOption,
    CsvOption,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    FigureOption,
    HtmlOption,
    JsonOption,
    ModelArgument,
)
from toposcope.cli.deliver import check_names, deliver, watched


def run(
    model: ModelArgument,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the result and D are written.")],
    diagonal: Annotated[
        str,
        typer.Option(
            "--diagonal", metavar="auto|bound|NUMBER", help="Where D starts: small, above the bound, or there."
        ),
    ] = "auto",
    form: Annotated[
        Literal["slice", "uniform"], typer.Option("--form", help="Each head its slice, or all of x^T D x.")
    ] = "slice",
    text: Annotated[
        str, typer.Option("--text", metavar="FILE|NAME", help="The text; its last fifth is held out.")
    ] = "wiki",
    steps: Annotated[int, typer.Option("--steps", help="Steps of each arm, one sequence a step.")] = 200,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", help="Tokens of each sequence.")] = 128,
    held_out: Annotated[int, typer.Option("--held-out", metavar="M", help="Held-out sequences.")] = 24,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of D, in units of its start.")] = 0.1,
    control_lr: Annotated[float, typer.Option("--control-lr", help="Learning rate of the control.")] = 0.005,
    norms: Annotated[bool, typer.Option("--norms", help="Tune the norms as well, in both arms.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the sequences' order.")] = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    device_map: DeviceMapOption = None,
    batch: BatchOption = 1,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Add x_i^T D x_j to the logits of a trained rotary model, tune only D, and measure (needs the [hf] extra).

    Beside it a control tunes as many other parameters on the same data. Interrupt it, and the same command goes on.
    """
    from toposcope.studies.refine import refine

    check_names(figure)
    with watched() as progress:
        result = refine(
            model, out=out, text=text, diagonal=diagonal, form=form, steps=steps, tokens=tokens, held_out=held_out,
            lr=lr, control_lr=control_lr, norms=norms, seed=seed, device=device, dtype=dtype, device_map=device_map,
            batch=batch, progress=progress,
        )  # fmt: skip
    deliver(result, json=json, csv=csv, html=html, figure=figure)
