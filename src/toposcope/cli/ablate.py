"""`toposcope ablate MODEL --text FILE`: which heads does a model need, and does everything hang on one of them?"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from toposcope.cli.common import (
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
from toposcope.cli.texts import BeginOption, LinesOption, SeedOption, SequencesOption, TextOption, TokensOption
from toposcope.core.errors import BadValue
from toposcope.models.ablation import SEQUENCES, TOKENS

PROVED_ON = 16  # tokens: equality to the bit needs no long text


def run(
    model: ModelArgument,
    text: TextOption = "wiki",
    tokens: TokensOption = TOKENS,
    sequences: SequencesOption = SEQUENCES,
    begin: BeginOption = 0,
    lines: LinesOption = False,
    method: Annotated[
        Literal["zero", "mean", "resample"], typer.Option("--method", help="What stands in for a head's output.")
    ] = "zero",
    mode: Annotated[
        Literal["exact", "screen"], typer.Option("--mode", help="Every head, or those that backward passes name.")
    ] = "exact",
    layers: LayersOption = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="3.2,5.0|positional", help="Only these heads.")
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            "--pairs", metavar="layer0|all-top", help="Also remove pairs: of a layer, or of the worst heads."
        ),
    ] = None,
    only: Annotated[
        str, typer.Option("--only", metavar="TEXTS", help="Which of text, shuffled, repeated to measure on.")
    ] = "text,shuffled,repeated",
    sample: Annotated[
        int,
        typer.Option("--sample", metavar="N", min=0, help="Other heads that --mode screen measures all the same."),
    ] = 0,
    seed: SeedOption = 0,
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Where the sweep is kept (*: model and key).")
    ] = "runs/ablate-*",
    check: Annotated[
        bool, typer.Option("--check", help="Prove that one head, and only that one, is removed.")
    ] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    device_map: DeviceMapOption = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", min=1, help="Removals that run together.", show_default="512 tokens"),
    ] = None,
    full: FullOption = False,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Remove each head in turn and measure what the model loses (needs the [hf] extra).

    A sweep that was stopped continues where it was when it is started again. With --check: exit code 1 if the proof
    does not hold. A model that 'toposcope train' wrote is measured on new sentences of its own task.
    """
    from toposcope.checkpoints.families.lab import model_directory

    small = model_directory(model)
    if small is not None:
        from toposcope.lab.ablation import ablate_lab

        deliver(ablate_lab(small, seed=seed, device=device), json=json, csv=csv, html=html, figure=figure, full=full)
        return
    if check and figure:
        raise BadValue("there is no figure of a proof: --check goes with --html and --json.")
    from toposcope.models.ablation.ablate import ablate
    from toposcope.models.ablation.check import ablate_check

    check_names(figure)
    with watched() as progress:
        if check:
            proof = ablate_check(
                model, text, tokens=min(tokens, PROVED_ON), sequences=sequences, begin=begin, lines=lines,
                method=method, layers=layers, heads=heads, seed=seed, device=device, dtype=dtype,
                device_map=device_map, progress=progress,
            )  # fmt: skip
        else:
            result = ablate(
                model, text, tokens=tokens, sequences=sequences, begin=begin, lines=lines, method=method, mode=mode,
                layers=layers, heads=heads, pairs=pairs, only=only, sample=sample, seed=seed, out=out,
                device=device, dtype=dtype, device_map=device_map, batch=batch, progress=progress,
            )  # fmt: skip
    deliver(proof if check else result, json=json, csv=csv, html=html, figure=figure, full=full)
    if check and not proof.holds:
        raise typer.Exit(1)
