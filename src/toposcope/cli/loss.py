"""`toposcope loss MODEL --text FILE`: what a text costs, by position, under the model's encoding and others."""

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
    LayersOption,
    ModelArgument,
)
from toposcope.cli.deliver import check_names, deliver, watched
from toposcope.cli.texts import BeginOption, LinesOption, SeedOption, SequencesOption, TextOption, TokensOption


def run(
    model: ModelArgument,
    text: TextOption = "wiki",
    tokens: TokensOption = 256,
    sequences: SequencesOption = 4,
    begin: BeginOption = 0,
    lines: LinesOption = False,
    encoding: Annotated[
        list[str] | None,
        typer.Option("--encoding", metavar="NAME", help="The same under another encoding; may be repeated."),
    ] = None,
    layers: LayersOption = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="3.2,5.0", help="Put the encoding into these heads only.")
    ] = None,
    each: Annotated[
        Literal["layer", "head"] | None, typer.Option("--each", help="Put it into one layer, or head, at a time.")
    ] = None,
    beyond: Annotated[bool, typer.Option("--beyond", help="Allow more tokens than the model's context.")] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    device_map: DeviceMapOption = None,
    batch: BatchOption = 1,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """The loss of a text in nats per token, and how it changes with the encoding (needs the [hf] extra).

    --encoding none shows what position is worth; with --each layer, where it is needed.
    """
    from toposcope.models.loss import loss

    check_names(figure)
    with watched() as progress:
        result = loss(
            model, text, tokens=tokens, sequences=sequences, begin=begin, lines=lines, encoding=encoding or (),
            layers=layers, heads=heads, each=each, beyond=beyond, seed=seed, device=device, dtype=dtype,
            device_map=device_map, batch=batch, progress=progress,
        )  # fmt: skip
    deliver(result, json=json, csv=csv, html=html, figure=figure)
