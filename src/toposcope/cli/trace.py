"""`toposcope trace MODEL --text FILE`: what the heads of a real model do on a text, head by head."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import (
    CsvOption,
    FigureOption,
    HtmlOption,
    JsonOption,
    LayersOption,
    ModelArgument,
    console,
    progress,
)

if TYPE_CHECKING:
    from toposcope.models.sites import Site

PICTURED = 4  # heads whose logits are kept when nobody says which: the most positional ones


def run(
    model: ModelArgument,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="FILE|NAME|random",
            help="A text, its name ('ls texts'), or 'random': tokens drawn by Zipf's law.",
            show_default="wiki",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=2, help="Tokens of each sequence.")] = 256,
    sequences: Annotated[int, typer.Option("--sequences", metavar="M", min=1, help="How many sequences.")] = 4,
    begin: Annotated[int, typer.Option("--begin", metavar="C", min=0, help="The character at which to begin.")] = 0,
    lines: Annotated[bool, typer.Option("--lines", help="Every line of the text is a sequence.")] = False,
    layers: LayersOption = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="3.2,5.0-3", help="Only these heads ('0-3': of every layer).")
    ] = None,
    head_table: Annotated[bool, typer.Option("--head-table", help="Print every head.")] = False,
    dense_limit: Annotated[
        int, typer.Option("--dense-limit", metavar="N", min=2, help="All singular values up to so many tokens.")
    ] = 512,
    encoding: Annotated[
        str | None, typer.Option("--encoding", metavar="NAME", help="Put this encoding into the traced heads.")
    ] = None,
    logits: Annotated[
        str | None,
        typer.Option(
            "--logits",
            metavar="3.2,5.0",
            help="Picture these heads' logits ('none': of no head).",
            show_default=f"{PICTURED} heads",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the drawn and of the random tokens.")] = 0,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """On a text: what position does to each head's logits, and what the head attends to (needs the [hf] extra).

    Medians and quartiles over sequences: logits against the same content without position, Toeplitz share, content /
    position / coupling, mean kernel; shares of attention on previous, first, own and repeated tokens; and how well
    the weights alone would have told.
    """
    if "numpy" not in sys.modules:  # matrices are small: threads inside BLAS would only get in the way
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from toposcope.checkpoints.families.lab import model_directory
    from toposcope.cli.pictures import checked_figure, title_of, write_pictures
    from toposcope.cli.trace_words import print_heads, print_trace
    from toposcope.core.errors import BadValue
    from toposcope.core.ranges import parse_heads as parse_pairs
    from toposcope.core.ranges import parse_range
    from toposcope.core.results import emit_csv, emit_json, envelope
    from toposcope.encodings import parse
    from toposcope.models.corpus import RANDOM, cut, drawn
    from toposcope.models.instrument import attached
    from toposcope.models.load import load_reference, read_text
    from toposcope.models.trace import trace

    started = time.perf_counter()
    checked_figure(figure)
    if encoding is not None:
        parse(encoding)  # complain before the model is loaded
    pictured = PICTURED if logits is None else [] if logits == "none" else parse_pairs(logits)
    reference: Any
    small = model_directory(model)
    if small is not None:
        from toposcope.lab import running

        if text not in (None, RANDOM):
            raise BadValue(
                f"'{text}' cannot be read by a model of the laboratory, which has no tokenizer. Leave --text out for "
                "sentences of its own task, or give --text random."
            )
        reference = running.load_running(small)
        task = running.own_task(small, reference.inner)
        corpus = (running.random_corpus if text == RANDOM else running.corpus)(task, sequences, seed)
    elif text == RANDOM:
        if begin or lines:
            raise BadValue("--begin and --lines choose from a text, and 'random' is none. Leave them out.")
        reference = load_reference(model, attention="sdpa")
        corpus = drawn(reference, tokens=tokens, count=sequences, seed=seed)
    else:
        name = text or "wiki"
        content = read_text(name)
        reference = load_reference(model, attention="sdpa")
        corpus = cut(reference, content, tokens=tokens, count=sequences, name=name, begin=begin, lines=lines)
    with attached(reference) as instrument:
        wanted = parse_range(layers, len(instrument.sites))
        chosen = parse_heads(heads, instrument.sites, wanted)
        found = trace(
            reference,
            corpus,
            layers=wanted if chosen is None else sorted(chosen),
            heads=chosen,
            dense_limit=dense_limit,
            seed=seed,
            other=None if encoding is None else parse(encoding),
            logits=pictured,
            progress=progress,
        )
    options = {
        "text": corpus.name,
        "tokens": tokens,
        "sequences": sequences,
        "begin": begin,
        "lines": lines,
        "layers": layers,
        "heads": heads,
        "dense_limit": dense_limit,
        "encoding": encoding,
        "logits": logits,
        "seed": seed,
    }
    result = envelope(
        "trace",
        found.as_dict(),
        about=found.about,
        options=options,
        seconds=time.perf_counter() - started,
        skipped=found.skipped,
    )
    if json:
        emit_json(result, json)
    written = write_pictures([result], html, figure, title=title_of(model, Path(found.about["path"])))
    if csv:
        emit_csv([each.row() for each in found.heads], csv)
    if json != "-" and csv != "-":
        out = console()
        print_trace(out, found)
        if head_table:
            print_heads(out, found, found.heads)
        for name in written:
            out.print(f"Written: {name}", soft_wrap=True)


def parse_heads(text: str | None, sites: Sequence[Site], layers: Sequence[int]) -> dict[int, tuple[int, ...]] | None:
    """Heads by layer: '3.2,5.0-3' is head 2 of layer 3 and 0 to 3 of layer 5, '0-3' those of every given layer."""
    from toposcope.core.errors import BadValue
    from toposcope.core.ranges import parse_range
    from toposcope.models.sites import checked_heads, checked_site

    if text is None or text.strip().lower() == "all":
        return None
    chosen: dict[int, set[int]] = {}
    for part in text.split(","):
        layer, dot, numbers = part.strip().rpartition(".")
        if dot and not layer.isdecimal():
            raise BadValue(f"'{part.strip()}' is not a selection of heads. Write layer.head, such as 3.2,5.0-3.")
        for each in [int(layer)] if dot else layers:
            site = checked_site(tuple(sites), each)
            if each not in layers:
                raise BadValue(f"head {part.strip()} is in layer {each}, which --layers leaves out.")
            most = int(numbers) if numbers.isdecimal() else None
            if most is not None:
                checked_heads(site, (most,))
            chosen.setdefault(each, set()).update(parse_range(numbers, site.heads, "head"))
    return {layer: tuple(sorted(numbers)) for layer, numbers in chosen.items()}
