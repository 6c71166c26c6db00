"""`toposcope ablate MODEL --text FILE`: which heads does a model need, and does everything hang on one of them?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    from collections.abc import Sequence

    from rich.console import Console

    from toposcope.models.ablation.check import Proof
    from toposcope.models.ablation.replacement import Method
    from toposcope.models.ablation.runner import Heads, Meter, Text
    from toposcope.models.ablation.screen import Screen
    from toposcope.models.corpus import Corpus
    from toposcope.models.load import Reference

JOURNAL, RESULT = "journal.jsonl", "result.json"
MOST_PROVED = 64  # heads that --check tries when nobody says which
PROVED_ON = 16  # tokens: equality to the bit needs no long text


def run(
    model: ModelArgument,
    text: Annotated[
        str, typer.Option("--text", metavar="FILE|NAME", help="A text, or its name ('ls texts').")
    ] = "wiki",
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=2, help="Tokens of each sequence.")] = 128,
    sequences: Annotated[int, typer.Option("--sequences", metavar="N", min=1, help="How many sequences.")] = 4,
    begin: Annotated[int, typer.Option("--begin", min=0, help="The character at which the text begins.")] = 0,
    lines: Annotated[bool, typer.Option("--lines", help="One sequence for each line of the text.")] = False,
    method: Annotated[
        Literal["zero", "mean", "resample"], typer.Option("--method", help="What stands in for a head's output.")
    ] = "zero",
    mode: Annotated[
        Literal["exact", "screen"], typer.Option("--mode", help="Every head, or those that backward passes name.")
    ] = "exact",
    layers: LayersOption = None,
    heads: Annotated[str | None, typer.Option("--heads", metavar="3.2,5.0", help="Only these heads.")] = None,
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
        typer.Option("--sample", metavar="N", min=0, help="Heads that screen puts aside and measures all the same."),
    ] = 20,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")] = 0,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Where the sweep is kept.", show_default="runs/ablate-..."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Prove that one head, and only that one, is removed.")
    ] = False,
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    figure: FigureOption = None,
) -> None:
    """Remove each head in turn and measure what the model loses (needs the [hf] extra).

    A sweep that was stopped continues where it was when it is started again. With --check: exit code 1 if the proof
    does not hold.
    """
    from toposcope.checkpoints.families.lab import model_directory
    from toposcope.cli.ablate_words import print_ablation, print_proof
    from toposcope.cli.pictures import checked_figure, title_of, write_pictures
    from toposcope.core.errors import BadValue
    from toposcope.core.journal import Journal, key_of
    from toposcope.core.ranges import parse_heads
    from toposcope.core.results import emit_csv, emit_json, envelope
    from toposcope.models.ablation.result import summarise
    from toposcope.models.ablation.runner import metering, texts_of
    from toposcope.models.corpus import cut
    from toposcope.models.load import load_reference, read_text

    started = time.perf_counter()
    small = model_directory(model)
    if small is not None:
        from toposcope.cli.ablate_lab import run_lab

        run_lab(small, seed=seed, json=json, csv=csv, html=html, figure=figure)
        return
    if check and figure:
        raise BadValue("there is no figure of a proof: --check goes with --html and --json.")
    checked_figure(figure)
    names = ["text"] if check else _texts(only)
    asked: list[Heads] | None = None if heads in (None, "all") else [(each,) for each in parse_heads(heads)]
    content = read_text(text)
    reference = load_reference(model, head=True, attention="sdpa")
    length = min(tokens, PROVED_ON) if check else tokens
    corpus = cut(reference, content, tokens=length, count=sequences, name=text, begin=begin, lines=lines)
    texts = texts_of(reference, corpus, names, seed=seed)
    options = {
        "text": text,
        "tokens": tokens,
        "sequences": sequences,
        "begin": begin,
        "lines": lines,
        "method": method,
        "mode": mode,
        "layers": layers,
        "heads": heads,
        "pairs": pairs,
        "only": names,
        "sample": sample,
        "seed": seed,
    }
    said = console(to_stderr="-" in (json, csv))
    if check:
        proof = _prove(reference, texts, layers, heads, asked, method, seed)
        about = _about(reference, proof.weights_before)
        seconds = time.perf_counter() - started
        proved = envelope("ablate-check", proof.as_dict(), about=about, options=options, seconds=seconds)
        if json:
            emit_json(proved, json)
        print_proof(said, proof, model)
        for file in write_pictures([proved], html, None, title=title_of(model, reference.path)):
            said.print(f"Written: {file}", soft_wrap=True)
        if not proof.holds:
            raise typer.Exit(1)
        return

    key = _determines(reference, corpus, method, seed)
    name = _plain_name(model)
    where = Path(out) if out else Path("runs") / f"ablate-{name}-{key_of(key)[:8]}"
    said.print(f"Kept in {where}: a sweep that is stopped continues there.", soft_wrap=True)
    with (
        Journal(where / JOURNAL, key) as journal,
        metering(reference.model, texts, method=method, seed=seed, journal=journal) as meter,
    ):
        wanted = _wanted(meter, layers, asked)
        screen, tried = _measure(meter, wanted, mode, pairs, sample, seed, said)
        result = summarise(meter, wanted, model=name, mode=mode, pairs=tried, screen=screen)
    found = envelope(
        "ablate",
        {"ablation": result.as_dict()},
        about=_about(reference, key["weights"]),
        options=options,
        seconds=time.perf_counter() - started,
    )
    emit_json(found, str(where / RESULT))
    if json:
        emit_json(found, json)
    if csv:
        emit_csv(result.rows(), csv)
    written = write_pictures([found], html, figure, title=title_of(model, reference.path))
    print_ablation(said, result, corpus.cut)
    for file in written:
        said.print(f"Written: {file}", soft_wrap=True)


def _texts(only: str) -> list[str]:
    from toposcope.core.errors import BadValue, did_you_mean
    from toposcope.models.ablation.runner import TEXTS

    names = [part.strip() for part in only.split(",") if part.strip()]
    for name in names:
        if name not in TEXTS:
            raise BadValue(f"'{name}' cannot be measured on. {did_you_mean(name, TEXTS)}")
    if "text" not in names:
        raise BadValue("--only must name 'text': damages on the other two are read beside those on the text.")
    return [name for name in TEXTS if name in names]


def _determines(reference: Reference, corpus: Corpus, method: str, seed: int) -> dict[str, Any]:
    """Everything that the measured numbers depend on, whichever of the texts are measured on."""
    from toposcope.checkpoints.identity import fingerprint
    from toposcope.models.about import identity_of
    from toposcope.models.score import kind_of

    tokenizer = reference.tokenizer
    special = [sorted(tokenizer.all_special_ids), getattr(tokenizer, "mask_token_id", None)]
    return {
        "work": "ablate",
        **identity_of(reference.model),
        "score": kind_of(reference.model),
        "tokens": fingerprint([corpus.sequences, special]),
        "method": method,
        "seed": seed,
    }


def _wanted(meter: Meter, layers: str | None, asked: list[Heads] | None) -> list[Heads]:
    from toposcope.core.ranges import parse_range

    chosen = parse_range(layers, len(meter.sizes))
    if asked is None:
        return meter.all_heads(chosen)
    return [each for each in map(meter.checked, asked) if each[0][0] in chosen]


def _prove(
    reference: Reference,
    texts: Sequence[Text],
    layers: str | None,
    heads: str | None,
    asked: list[Heads] | None,
    method: Method,
    seed: int,
) -> Proof:
    """The proof for the heads asked for; of a large model, unless all were asked for, a sample."""
    import numpy as np

    from toposcope.models.ablation.check import prove
    from toposcope.models.ablation.runner import metering

    with metering(reference.model, texts, resume=False) as meter:
        wanted = _wanted(meter, layers, asked)
        if heads is None and layers is None and len(wanted) > MOST_PROVED:
            drawn = np.random.default_rng(seed).choice(len(wanted), MOST_PROVED, replace=False)
            wanted = [wanted[number] for number in sorted(drawn)]
        with progress("heads", len(wanted)) as tick:
            trials = texts[0].trials
            return prove(reference.model, [head for (head,) in wanted], trials, method=method, seed=seed, tick=tick)


def _measure(
    meter: Meter, wanted: list[Heads], mode: str, pairs: str | None, sample: int, seed: int, said: Console
) -> tuple[Screen | None, list[Heads]]:
    """Measure what was asked for; the screen if there was one, and the pairs that were tried."""
    from toposcope.cli.ablate_words import print_plan
    from toposcope.models.ablation.result import pairs_to_try
    from toposcope.models.ablation.screen import choose, estimates, judged

    guess, chosen, drawn = None, wanted, wanted[:0]
    if mode == "screen":
        guess = estimates(meter, wanted)
        chosen, drawn = choose(wanted, guess, sample=sample, seed=seed)
    singles, find_pairs = pairs_to_try(meter, pairs) if pairs else ([], list)
    plan = meter.plan([*chosen, *drawn])
    print_plan(said, plan, meter)
    with progress("heads removed", plan.measurements) as tick:
        meter.measure([*chosen, *drawn], tick=tick)
    meter.measure(singles, ["text"])
    tried: list[Heads] = find_pairs()
    if tried:
        with progress("pairs removed", len(tried) * len(meter.texts["text"].trials)) as tick:
            meter.measure(tried, ["text"], tick)
    meter.measure_floor()
    return (None if guess is None else judged(meter, wanted, guess, chosen, drawn)), tried


def _about(reference: Reference, digest: str) -> dict[str, str]:
    return {"path": str(reference.path), "architecture": type(reference.model).__name__, "sha256": digest}


def _plain_name(model: str) -> str:
    name = Path(model).name if Path(model).exists() else model
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
