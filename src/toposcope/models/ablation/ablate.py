"""`ablate`: remove each head in turn and measure what the model loses; a sweep that was stopped continues."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

from toposcope.checkpoints.families.lab import model_directory
from toposcope.checkpoints.identity import fingerprint
from toposcope.checkpoints.opened import called
from toposcope.core.errors import BadValue, did_you_mean
from toposcope.core.journal import Journal, key_of
from toposcope.core.progress import Progress, duration_range, steps
from toposcope.core.ranges import parse_heads, written_heads, written_layers
from toposcope.core.result import Provenance
from toposcope.core.statistics import from_error
from toposcope.models.ablation import SEQUENCES, TOKENS
from toposcope.models.ablation.foreseen import TimeLeft
from toposcope.models.ablation.positional import POSITIONAL, PositionShares, positional_heads, shares_of_position
from toposcope.models.ablation.replacement import METHODS, Method
from toposcope.models.ablation.result import TOP_PAIRS, AblateResult, Mode, pairs_to_try, summarise
from toposcope.models.ablation.runner import (
    TEXTS,
    AblationPlan,
    AblationRunner,
    Heads,
    ablation_runner,
    side_by_side,
    texts_of,
)
from toposcope.models.ablation.screen import Screen, choose, estimates, estimates_work, judged
from toposcope.models.about import identity_of
from toposcope.models.corpus import Corpus
from toposcope.models.device import (
    computation,
    memory_told,
    placement,
    require_batch,
    running_on,
    with_doubts,
)
from toposcope.models.load import Reference
from toposcope.models.rounding import with_rounding
from toposcope.models.running import RunnableLike, on_text, running_subject
from toposcope.models.score import kind_of

ENOUGH = 3  # sequences: with fewer, hardly any damage can be told from 0
JOURNAL, RESULT = "journal.jsonl", "result.json"
_log = logging.getLogger("toposcope")


def ablate(
    model: RunnableLike,
    text: str | Path = "wiki",
    *,
    tokens: int = TOKENS,
    sequences: int = SEQUENCES,
    begin: int = 0,
    lines: bool = False,
    method: Method = "zero",
    mode: Mode = "exact",
    layers: str | int | Sequence[int] | None = None,
    heads: str | Sequence[tuple[int, int]] | None = None,
    pairs: str | None = None,
    only: str | Sequence[str] = TEXTS,
    sample: int = 0,
    seed: int = 0,
    tokenizer: Any = None,
    out: str | Path | None = None,
    device: str | None = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> AblateResult:
    """Remove each head in turn and measure how much the loss of a text rises.

    `model` is a name, a path, or a loaded model of transformers (with its `tokenizer`, unless that lies in the files
    it was loaded from); `text` a file, or a name of `toposcope ls texts`; beside it the same tokens shuffled and
    random tokens repeated are measured, or those of them named in `only`.
    `method` is what stands in for a head's output: zero, its mean, or its output on another sequence (resample).
    `mode` "screen" measures the fifth of the heads whose removal is expected to cost most, and a random `sample` of
    the others.
    `heads` may be "positional": those in whose logits position alone makes more than half, on as many tokens of the
    text as `trace` takes.
    `pairs` ("layer0", "all-top") are removed together too. In the directory `out` every measurement is kept as it is
    made, and the same call continues there; a * in its name becomes the model's name and the sweep's key. `batch`
    removals are run side by side (default: as many as have 512 tokens); `device`, `dtype` and `device_map` say where
    a model is loaded to, and in which precision (docs/devices.md).
    """
    started = time.perf_counter()
    layers, heads = written_layers(layers), written_heads(heads)
    for name, given, known in (("method", method, tuple(METHODS)), ("mode", mode, ("exact", "screen"))):
        if given not in known:
            raise BadValue(f"'{given}' is no {name} of removal. {did_you_mean(str(given), known)}")
    if isinstance(model, str | Path) and model_directory(model) is not None:
        raise BadValue(f"'{model}' is a model of the laboratory, which reads no text: use toposcope.ablate_lab.")
    names = _texts(only)
    positional = heads == POSITIONAL
    asked = None if positional or heads in (None, "all") else [(each,) for each in parse_heads(heads)]
    reference, corpus = on_text(
        model, text, tokens=tokens, sequences=sequences, begin=begin, lines=lines, head=True,
        place=placement(device, dtype, device_map), tokenizer=tokenizer,
    )  # fmt: skip
    warn_of_few(len(corpus.sequences), sequences)
    loading = time.perf_counter() - started
    batch = side_by_side(corpus) if batch is None else require_batch(batch)
    texts = texts_of(reference, corpus, names, seed=seed)
    options = {
        "text": str(text), "tokens": tokens, "sequences": sequences, "begin": begin, "lines": lines, "method": method,
        "mode": mode, "layers": layers, "heads": heads, "pairs": pairs, "only": names, "sample": sample, "seed": seed,
        "device": device, "dtype": dtype, "device_map": device_map, "batch": batch,
    }  # fmt: skip
    key = _determines(reference, corpus, method, seed)
    where = None if out is None else _place(out, called(model, reference.path), key)
    journal, kept = None, ""
    if where is not None:
        _log.info("Kept in %s: a sweep that is stopped continues there.", where)
        journal = Journal(where / JOURNAL, key)
        kept = f"What was measured so far is kept in {where}: the same command goes on there."
    how: dict[str, Any] = {"method": method, "seed": seed, "journal": journal, "batch": batch}
    try:
        with (
            memory_told(batch, kept),
            running_on(reference.model) as unsure,
            ablation_runner(reference.model, texts, **how) as runner,
        ):
            wanted = runner.wanted(layers, asked)
            measure = partial(
                shares_of_position, runner, reference, str(text), begin=begin, lines=lines, progress=progress
            )
            shares = measure(wanted) if positional else None
            if shares is not None:
                wanted, said = positional_heads(shares)
                _log.info("%s", said)
            screen, tried = _measure(runner, wanted, mode, pairs, sample, seed, progress, loading)
            found = summarise(runner, wanted, mode=mode, pairs=tried, screen=screen)
            found = _with_shares(found, shares, measure)
            ran = with_rounding(computation(reference.model), reference.model, texts[0].trials[0])
    finally:
        if journal is not None:
            journal.close()
    subject = running_subject(reference, model, sha256=key["weights"])
    ran = with_doubts(ran, unsure)
    found = replace(found, provenance=Provenance((subject,), options, time.perf_counter() - started, ran=ran))
    if where is not None:
        found.save(where / RESULT)
    return found


def _with_shares(
    found: AblateResult, shares: PositionShares | None, measure: Callable[[list[Heads]], PositionShares]
) -> AblateResult:
    """The result with the share of position in each head's logits; a note where it could not be measured."""
    if shares is None:
        try:
            shares = measure([((each.layer, each.head),) for each in found.heads])
        except BadValue as error:
            return replace(found, notes=(*found.notes, f"No share of position: {error}"))
    heads = tuple(replace(each, positional=shares.of.get(((each.layer, each.head),))) for each in found.heads)
    return replace(found, heads=heads, positional_on=shares.on if shares.of else None)


def warn_of_few(found: int, asked: int) -> None:
    """Say before the work that so few sequences will tell next to nothing."""
    if found >= ENOUGH:
        return
    if found == 1:
        why = "1 sequence has no interval"
    else:
        why = f"the 95% interval of {found} sequences is {from_error(1.0, found):.1f} standard errors to each side"
    more = "use fewer --tokens or a longer text" if found < asked else f"use --sequences {ENOUGH + 1} or more"
    _log.warning("%s: few heads, if any, can be told from 0; %s.", why, more)


def _texts(only: str | Sequence[str]) -> list[str]:
    given = only.split(",") if isinstance(only, str) else only
    names = [part.strip() for part in given if part.strip()]
    for name in names:
        if name not in TEXTS:
            raise BadValue(f"'{name}' cannot be measured on. {did_you_mean(name, TEXTS)}")
    if "text" not in names:
        raise BadValue("'text' must be among them: damages on the other two are read beside those on the text.")
    return [name for name in TEXTS if name in names]


def _determines(reference: Reference, corpus: Corpus, method: str, seed: int) -> dict[str, Any]:
    """Everything that the measured numbers depend on, whichever of the texts are measured on."""
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


def _place(out: str | Path, name: str, key: dict[str, Any]) -> Path:
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return Path(str(out).replace("*", f"{plain}-{key_of(key)[:8]}"))


def _measure(
    runner: AblationRunner,
    wanted: list[Heads],
    mode: Mode,
    pairs: str | None,
    sample: int,
    seed: int,
    progress: Progress | None,
    loading: float = 0.0,
) -> tuple[Screen | None, list[Heads]]:
    """Measure what was asked for; the screen if there was one, and the pairs that were tried."""
    guess, chosen, drawn = None, wanted, wanted[:0]
    pairs_work = 0.0
    singles, find_pairs = pairs_to_try(runner, pairs) if pairs else ([], list)
    if pairs:
        pairs_work = _pairs_work(runner, wanted, singles, find_pairs)
    screening = estimates_work(runner) if mode == "screen" else []
    step = "Step 2 of 2" if screening else ""
    if mode == "screen":
        if screening:
            heads, sequences = _count(len(wanted), "head"), _count(len(screening), "sequence")
            _log.info("Step 1 of 2: estimating %s on %s, to choose which to measure.", heads, sequences)
        first = screening[0] if screening else 0.0
        guess = estimates(
            runner, wanted, tick=TimeLeft(sum(screening), first, lambda: runner.work, "Step 1 of 2").look
        )
        chosen, drawn = choose(wanted, guess, sample=sample, seed=seed)
    plan = runner.plan([*chosen, *drawn])
    left = plan.work + runner.floor_work() + pairs_work
    _say(plan, runner, len(chosen) + len(drawn), step=step, loading=None if left else loading)
    clock = TimeLeft(left, plan.first, lambda: runner.work, step)
    runner.measure([*chosen, *drawn], tick=_both(steps(progress, "heads removed", plan.measurements), clock.look))
    runner.measure(singles, ["text"], clock.look)
    tried: list[Heads] = find_pairs()
    if tried:
        ticks = len(tried) * len(runner.texts["text"].trials)
        clock.expect(runner.plan(tried, ["text"]).work + runner.floor_work())
        runner.measure(tried, ["text"], _both(steps(progress, "pairs removed", ticks), clock.look))
    runner.measure_floor()
    return (None if guess is None else judged(runner, wanted, guess, chosen, drawn)), tried


def _pairs_work(
    runner: AblationRunner, wanted: list[Heads], singles: list[Heads], find: Callable[[], list[Heads]]
) -> float:
    """The work of the pairs, before it is known which they are where they are made of the worst heads."""
    if singles or not runner.plan(wanted, ["text"]).measurements:
        return runner.plan(singles, ["text"]).work + runner.plan(find(), ["text"]).work
    tokens = sum(each.tokens for each in runner.texts["text"].trials)
    return float(tokens * comb(min(TOP_PAIRS, sum(runner.sizes)), 2))


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def tick() -> None:
        first()
        second()

    return tick


def _say(plan: AblationPlan, runner: AblationRunner, heads: int, *, step: str, loading: float | None) -> None:
    """What is to come, before it begins; how long it takes is told when something of it has been measured.

    `loading` is how long it took to load the model, where nothing else is left to do.
    """
    if loading is not None:
        _log.info(
            "Everything is already measured; the model was loaded only to see that it is the same (%s).",
            duration_range(loading, loading),
        )
        return
    if plan.measurements:
        text = next(iter(runner.texts.values()))
        product = [_count(heads, "head"), _count(len(text.trials), "sequence"), _count(len(runner.texts), "text")]
        done = f", {plan.already} of them already measured" if plan.already else ""
        words = f"{plan.already + plan.measurements} measurements: {' x '.join(product)}{done}."
        _log.info("%s", f"{step}: {words}" if step else words)
    if runner.resumable.reason is not None:
        _log.info("Every run is a full one: %s.", runner.resumable.reason)


def _count(number: int, thing: str) -> str:
    """1 head, 2 heads."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
