"""`toposcope loss MODEL --text FILE`: what a text costs, by position, under the model's encoding and others."""

from __future__ import annotations

import time
from typing import Annotated

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


def run(
    model: ModelArgument,
    text: Annotated[str, typer.Option("--text", metavar="FILE|NAME", help="The text.")] = "wiki",
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", help="Tokens of each sequence.")] = 256,
    sequences: Annotated[int, typer.Option("--sequences", metavar="M", help="How many sequences.")] = 4,
    begin: Annotated[int, typer.Option("--begin", min=0, help="The character at which the text begins.")] = 0,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of the text is a sequence.")] = False,
    encoding: Annotated[
        list[str] | None,
        typer.Option("--encoding", metavar="NAME", help="The same under another encoding; may be repeated."),
    ] = None,
    layers: LayersOption = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="3.2,5.0", help="Put the encoding into these heads only.")
    ] = None,
    each: Annotated[
        str | None, typer.Option("--each", metavar="layer|head", help="Put it into one layer, or head, at a time.")
    ] = None,
    beyond: Annotated[bool, typer.Option("--beyond", help="Allow more tokens than the model's context.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Which tokens are hidden, for models that fill in.")] = 0,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """The loss of a text in nats per token, and how it changes with the encoding (needs the [hf] extra).

    --encoding none shows what position is worth; with --each layer, where it is needed.
    """
    from toposcope.cli.loss_words import print_loss
    from toposcope.cli.pictures import checked_figure, title_of, write_pictures
    from toposcope.core.errors import BadValue
    from toposcope.core.ranges import parse_heads, parse_range
    from toposcope.core.results import emit_csv, emit_json, envelope, plain
    from toposcope.encodings import parse
    from toposcope.models.about import about_running
    from toposcope.models.corpus import cut
    from toposcope.models.instrument import attached
    from toposcope.models.load import load_reference, read_text
    from toposcope.models.loss import Wanted, measure_loss

    started = time.perf_counter()
    checked_figure(figure)
    if each not in (None, "layer", "head"):
        raise BadValue(f"--each takes 'layer' or 'head', got '{each}'.")
    specs = [parse(written) for written in encoding or ()]
    if not specs and (layers or heads or each):
        raise BadValue("--layers, --heads and --each say where an --encoding goes, and none is given.")
    single = None if heads is None else parse_heads(heads)
    content = read_text(text)
    reference = load_reference(model, head=True, attention="sdpa")
    corpus = cut(
        reference, content, tokens=tokens, count=sequences, name=text, begin=begin, lines=lines, beyond=beyond
    )
    with attached(reference) as instrument:
        sites = instrument.sites
        numbers = parse_range(layers, len(sites))
        chosen = [site for site in (sites[number] for number in numbers) if not site.cross]
        wanted: list[Wanted] = []
        for spec in specs:
            if single is not None:
                wanted.append(Wanted(spec, heads=tuple(single), where=f"heads {heads}"))
            elif each == "layer":
                wanted += [Wanted(spec, layers=(site.number,), where=f"layer {site.number}") for site in chosen]
            elif each == "head":
                wanted += [
                    Wanted(spec, heads=((site.number, head),), where=f"head {site.number}.{head}")
                    for site in chosen
                    for head in range(site.heads)
                ]
            else:
                picked = tuple(site.number for site in chosen)
                wanted.append(Wanted(spec, layers=picked if layers else None, where=layers and f"layers {layers}"))
        with progress("conditions", 1 + len(wanted)) as tick:
            found = measure_loss(reference, corpus, wanted, seed=seed, tick=tick)
    written = []
    if json or html or figure:
        options = {
            "text": text, "tokens": tokens, "sequences": sequences, "begin": begin, "lines": lines,
            "encoding": [str(spec) for spec in specs], "layers": layers, "heads": heads, "each": each,
            "beyond": beyond, "seed": seed,
        }  # fmt: skip
        about = about_running(reference)
        result = envelope("loss", plain(found), about=about, options=options, seconds=time.perf_counter() - started)
        if json:
            emit_json(result, json)
        written = write_pictures([result], html, figure, title=title_of(model, reference.path))
    if csv:
        emit_csv(
            [
                {
                    "encoding": row.encoding,
                    "where": row.where or "all",
                    "loss": row.loss,
                    "difference": row.difference,
                    "half_width": row.half_width,
                }
                for row in found.conditions
            ],
            csv,
        )
    if "-" not in (json, csv):
        out = console()
        print_loss(out, found)
        for name in written:
            out.print(f"Written: {name}", soft_wrap=True)
