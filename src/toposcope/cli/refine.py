"""`toposcope refine MODEL --out DIR`: add the diagonal to a trained rotary model, tune it, and say what it buys."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from toposcope.cli.common import HtmlOption, JsonOption, ModelArgument, console, progress
from toposcope.cli.stored import from_disk


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
        str, typer.Option("--form", metavar="slice|uniform", help="Each head its slice, or all of x^T D x.")
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
    seed: Annotated[int, typer.Option("--seed", help="The order of the sequences.")] = 0,
    json: JsonOption = None,
    html: HtmlOption = None,
) -> None:
    """Add x_i^T D x_j to the logits of a trained rotary model, tune only D, and measure (needs the [hf] extra).

    Beside it a control tunes as many other parameters on the same data. Interrupt it, and the same command goes on.
    """
    from toposcope.core.errors import BadValue
    from toposcope.core.results import envelope, plain
    from toposcope.core.sealed import write_sealed
    from toposcope.models.about import about_running
    from toposcope.models.corpus import cut
    from toposcope.models.load import load_reference, read_text, require

    started = time.perf_counter()
    require("torch", "transformers")
    from toposcope.refinements.diagonal import save
    from toposcope.refinements.saved import forget
    from toposcope.studies.refine import Settings, key_of, ticks, tune

    settings = Settings(diagonal, form, steps, lr, control_lr, norms=norms, seed=seed)  # type: ignore[arg-type]
    options = {"model": model, "text": text, "tokens": tokens, "held_out": held_out, **plain(settings)}
    place, content = Path(out), read_text(text)
    edge = len(content) * 4 // 5
    reference = load_reference(model, head=True, attention="sdpa")
    train = cut(reference, content[:edge], tokens=tokens, count=steps, name=text)
    held = cut(reference, content, tokens=tokens, count=held_out, name=text, begin=edge)
    if len(held.sequences) < 2:
        raise BadValue(f"the last fifth of {text} holds one sequence, and an interval needs two. Give more text.")
    key = key_of(reference, train, held, settings)
    result = _finished(place, key)
    kept = result is not None
    if result is None:
        about = about_running(reference)
        with progress("steps", ticks(settings)) as tick:
            found, values = tune(reference, train, held, settings, directory=place, tick=tick)
        save(place / "diagonal.safetensors", values, settings.form)
        result = envelope("refine", plain(found), about=about, options=options, seconds=time.perf_counter() - started)
        write_sealed(place / "result.json", key, result)
    forget(place)  # also what a call left that was killed just before this
    _deliver(result, place, model, json=json, html=html, kept=kept)


def _deliver(
    result: dict[str, Any], place: Path, model: str, *, json: str | None, html: str | None, kept: bool
) -> None:
    """Print and write what was found, now or by an earlier call (`kept`)."""
    from toposcope.cli.pictures import title_of, write_pictures
    from toposcope.cli.refine_words import print_refine
    from toposcope.core.results import emit_json, plain

    sound = from_disk(place / "result.json", "Remove it to tune again, or give another --out.")
    with sound if kept else nullcontext():
        if json:
            emit_json(plain(result), json)
        written = write_pictures([result], html, None, title=title_of(model, Path(result["subject"]["path"])))
        if json != "-":
            print_refine(console(), result, place)
            for name in written:
                console().print(f"  {name}", soft_wrap=True)


def _finished(place: Any, key: str) -> dict[str, Any] | None:
    """The result that is there already, if it is of the same model, texts and options."""
    from toposcope.core.errors import BadFile, BadValue, NotFound
    from toposcope.core.sealed import SUM, read_sealed

    path = place / "result.json"
    try:
        found = read_sealed(path, None, {"schema": "toposcope/refine/1", "options": {}})
    except NotFound:
        return None
    except BadFile as error:
        raise BadFile(f"{error} Remove it to tune again, or give another --out.") from error
    if found["key"] != key:
        raise BadValue(
            f"{place} holds the result of another model, text or options. Give another --out, or remove {path}."
        )
    return {name: value for name, value in found.items() if name != SUM}
