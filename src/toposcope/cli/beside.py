"""`toposcope beside MODEL`: what the layers do to a real text, beside what the flow and the weights say."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, Any

import typer

from toposcope.cli.common import HtmlOption, JsonOption, LayersOption, ModelArgument, console, progress


def run(
    model: ModelArgument,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text", metavar="FILE|NAME", help="A text; give several to see what repeats.", show_default="wiki, c4"
        ),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=2, help="How many tokens of each text.")] = 64,
    begin: Annotated[int, typer.Option("--begin", min=0, help="The character at which each text begins.")] = 0,
    layers: LayersOption = None,
    verdicts: Annotated[
        bool, typer.Option("--verdicts", help="Run every certified head from its real tokens, beside its verdict.")
    ] = False,
    json: JsonOption = None,
    html: HtmlOption = None,
) -> None:
    """Measure real hidden states layer by layer and set them beside the flow's prediction (needs the [hf] extra).

    With --verdicts: does any head, let alone to act on its real tokens, contradict the theorem? Exit code 1 if so.
    """
    if "numpy" not in sys.modules:  # matrices are small: threads inside BLAS would only get in the way
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from toposcope.checkpoints import load
    from toposcope.cli.beside_words import print_beside, print_verification
    from toposcope.cli.pictures import title_of, write_pictures
    from toposcope.core.ranges import parse_range
    from toposcope.core.results import emit_json, envelope, subject
    from toposcope.models.beside import Beside, beside_states
    from toposcope.models.hidden import hidden_states
    from toposcope.models.load import load_reference, read_text
    from toposcope.models.verify import verify

    started = time.perf_counter()
    names = text or ["wiki", "c4"]
    contents = [read_text(name) for name in names]
    reference = load_reference(model)
    out = console()
    with load(reference.path) as opened:
        chosen = parse_range(layers, len(opened.layers))
        seen = [
            hidden_states(reference, content, tokens=tokens, name=name, begin=begin)
            for name, content in zip(names, contents, strict=True)
        ]
        with progress("layers", len(chosen) * len(seen)) as tick:
            if verdicts:
                runs = [
                    verify(opened, hidden, layers=chosen, workers=os.cpu_count() or 1, tick=tick) for hidden in seen
                ]
                body: dict[str, Any] = {"verdicts": [each.as_dict() for each in runs]}
            else:
                measured = Beside(opened.path.name, tuple(beside_states(opened, h, chosen, tick) for h in seen))
                body = {"beside": measured.as_dict()}
        about = subject(opened)
    options = {"text": names, "tokens": tokens, "begin": begin, "layers": layers, "verdicts": verdicts}
    result = envelope("beside", body, about=about, options=options, seconds=time.perf_counter() - started)
    if json:
        emit_json(result, json)
    written = write_pictures([result], html, None, title=title_of(model, reference.path))
    if json != "-" and verdicts:
        for each in runs:
            print_verification(out, each)
    elif json != "-":
        print_beside(out, measured)
    for name in written if json != "-" else []:
        out.print(f"Written: {name}", soft_wrap=True)
    if verdicts and any(each.contradictions for each in runs):
        raise typer.Exit(1)
