"""`toposcope trace MODEL --text FILE`: what the heads of a real model do on a text, head by head."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from toposcope.cli.common import (
    BatchOption,
    CsvOption,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    FigureOption,
    FullOption,
    HtmlOption,
    JsonOption,
    LayersOption,
    ModelArgument,
)
from toposcope.cli.deliver import check_names, deliver, watched
from toposcope.cli.texts import BeginOption, LinesOption, SeedOption, SequencesOption, TokensOption
from toposcope.models.tracing import SEQUENCES, TOKENS


def run(
    model: ModelArgument,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="FILE|NAME|random",
            help="A text file, a name from 'toposcope ls texts', or 'random': tokens drawn by Zipf's law.",
            show_default="wiki",
        ),
    ] = None,
    tokens: TokensOption = TOKENS,
    sequences: SequencesOption = SEQUENCES,
    begin: BeginOption = 0,
    lines: LinesOption = False,
    layers: LayersOption = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="3.2,5.0-3", help="Only these heads ('0-3': of every layer).")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", metavar="NAME", help="Put this encoding into the traced heads.")
    ] = None,
    depth: Annotated[
        bool, typer.Option("--depth", help="Set the layers beside the flow of their weights, on the first tokens.")
    ] = False,
    depth_encoding: Annotated[
        list[str] | None,
        typer.Option(
            "--depth-encoding",
            metavar="NAME",
            help="Follow tokens through depth under this encoding too (beside 'none'); may be repeated.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run every certified head on its real tokens, beside its verdict.")
    ] = False,
    logits: Annotated[
        str | None,
        typer.Option(
            "--logits", metavar="3.2,5.0", help="Picture these heads' logits, or 'none'.", show_default="4 heads"
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            metavar="N",
            min=0,
            help="Keep heads' attention on 128 tokens from token N on.",
            show_default="the first and the last",
        ),
    ] = None,
    dense_limit: Annotated[
        int, typer.Option("--dense-limit", metavar="N", min=2, help="All singular values up to so many tokens.")
    ] = 512,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Processes for long work.", show_default="all cores"),
    ] = None,
    full: FullOption = False,
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
    """On a text: what position does to each head's logits, and what the head attends to (needs the [hf] extra).

    Medians and quartiles over sequences: logits against the same content without position, Toeplitz share, content /
    position / interaction, mean kernel; shares of attention on previous, first, own and repeated tokens; and how well
    the weights alone would have told. With --verify: exit code 1 if a head contradicts its verdict.
    """
    if "numpy" not in sys.modules:  # matrices are small: threads inside BLAS would only get in the way
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from toposcope.models.tracing.trace import trace

    check_names(figure)
    with watched() as progress:
        result = trace(
            model, text, tokens=tokens, sequences=sequences, begin=begin, lines=lines, layers=layers, heads=heads,
            dense_limit=dense_limit, encoding=encoding, logits=logits, window=window, depth=depth,
            depth_encoding=depth_encoding or (), verify=verify, jobs=jobs, seed=seed, device=device, dtype=dtype,
            device_map=device_map, batch=batch, progress=progress,
        )  # fmt: skip
    deliver(result, json=json, csv=csv, html=html, figure=figure, full=full)
    if result.verdicts is not None and result.verdicts.contradictions:
        raise typer.Exit(1)
