"""`toposcope spectrum ENCODING...`: positional kernels at any context, side by side; a model's own with --model."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.cli.common import CsvOption, FigureOption, HtmlOption, JsonOption
from toposcope.cli.deliver import check_names, deliver, watched


def run(
    encodings: Annotated[
        list[str] | None,
        typer.Argument(metavar="ENCODING...", help="Such as rope, alibi, rope:base=500000.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="First the encoding of this model, as its files have it."),
    ] = None,
    context: Annotated[
        str, typer.Option("--context", metavar="N", help="The longest context; 128k and 1M are understood.")
    ] = "128k",
    head_dim: Annotated[
        int | None,
        typer.Option("--head-dim", metavar="h", min=1, help="Width of a head (default: 64, or the model's)."),
    ] = None,
    num_heads: Annotated[
        int | None,
        typer.Option(
            "--num-heads", metavar="H", min=1, help="Number of heads in a layer (default: 8, or the model's)."
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", metavar="D", min=1, help="Width of the model (default: H x h).")
    ] = None,
    trained: Annotated[
        str | None,
        typer.Option(
            "--trained", metavar="N", help="Context of training (default: a scaling's original, the model's, or 8k)."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print all tables, not only the answer.")] = False,
    head: Annotated[int, typer.Option("--head", metavar="I", min=0, help="Which head of a bias, from 0.")] = 0,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
    plot: Annotated[str | None, typer.Option("--plot", hidden=True)] = None,
    heads: Annotated[int | None, typer.Option("--heads", hidden=True, min=1)] = None,
) -> None:
    """Is an encoding good for 128k, after training on less, and why? No model is needed; --model asks about one.

    --full adds what encodings do to constant content: norm, effective rank and condition by context.
    'toposcope ls encodings' lists the encodings and their parameters.
    """
    from toposcope.spectra.spectrum import spectrum

    check_names(figure := figure or plot)
    with watched() as progress:
        result = spectrum(
            encodings or (), context, model=model, head_dim=head_dim, num_heads=heads or num_heads, width=width,
            head=head, trained=trained, progress=progress,
        )  # fmt: skip
    deliver(result, json=json, csv=csv, html=html, figure=figure, full=full)
