"""`toposcope compare A B`: two checkpoints, or two stored results of one kind, head by head."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from toposcope.cli.common import (
    CsvOption,
    FamilyOption,
    FigureOption,
    HeadsOption,
    HtmlOption,
    JsonOption,
    LayersOption,
    console,
    progress,
)
from toposcope.cli.stored import from_disk

MAKE_AGAIN = "Was it written with --json, and not changed since? Make it again."


def run(
    a: Annotated[
        str, typer.Argument(metavar="A", help="A model, or a .json file that a command wrote.", show_default=False)
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one, of the same kind.", show_default=False)],
    layers: LayersOption = None,
    head_table: Annotated[bool, typer.Option("--head-table", help="Print every head.")] = False,
    family: FamilyOption = None,
    heads: HeadsOption = None,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Before and after fine-tuning: how far did each head's Q'K and O V move, and does its verdict still stand?

    Exit code 0 whether or not the two differ; what differs is in the output.
    """
    if "numpy" not in sys.modules:  # matrices are small: threads inside BLAS would only get in the way
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from toposcope.cli.pictures import checked_figure
    from toposcope.core.errors import BadValue
    from toposcope.core.results import envelope

    started = time.perf_counter()
    checked_figure(figure)
    stored = [Path(each).suffix == ".json" and Path(each).is_file() for each in (a, b)]
    if stored[0] != stored[1]:
        raise BadValue(f"'{a}' and '{b}' are a stored result and a model; give two models, or two .json files.")
    body: dict[str, Any]
    if stored[0]:
        from toposcope.report import read_results
        from toposcope.scanning.compare import compare_results

        if layers:
            raise BadValue("--layers chooses layers of models; stored results are compared as they are.")
        one, two = (read_results([each])[0] for each in (a, b))
        with from_disk(f"{a} or {b}", MAKE_AGAIN):
            body = compare_results(one, two)
        about, names = None, [a, b]
    else:
        body, about, names = _models(a, b, layers, family, heads)
    result = envelope(
        "compare",
        {**body, "a": names[0], "b": names[1]},
        about=about,
        options={"layers": layers, "family": family, "heads": heads},
        seconds=time.perf_counter() - started,
    )
    with from_disk(f"{a} or {b}", MAKE_AGAIN) if stored[0] else nullcontext():
        _show(result, head_table, json, csv, html, figure)


def _show(
    result: dict[str, Any], head_table: bool, json: str | None, csv: str | None, html: str | None, figure: str | None
) -> None:
    from toposcope.cli.compare_words import print_comparison
    from toposcope.cli.pictures import write_pictures
    from toposcope.core.results import emit_csv, emit_json

    if json:
        emit_json(result, json)
    if csv:
        emit_csv(result["heads"], csv)
    written = write_pictures([result], html, figure, title=f"{result['a']} and {result['b']}")
    if json != "-" and csv != "-":
        out = console()
        print_comparison(out, result, every=head_table)
        for name in written:
            out.print(f"Written: {name}", soft_wrap=True)


def _models(
    a: str, b: str, layers: str | None, family: str | None, heads: int | None
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    from toposcope.checkpoints import load
    from toposcope.core.ranges import parse_range
    from toposcope.core.results import subject
    from toposcope.scanning.compare import compare_models

    with load(a, family=family, heads=heads) as first, load(b, family=family, heads=heads) as second:
        chosen = parse_range(layers, len(first.layers))
        with progress("comparing layers", 2 * len(chosen)) as tick:
            found = compare_models(first, second, chosen, workers=os.cpu_count() or 1, tick=tick)
        mine, theirs = subject(first), subject(second)
    about = {**mine, "path": mine["path"], "path of B": theirs["path"], "sha256 of B": theirs["sha256"]}
    return found.as_dict(), about, [a, b]
