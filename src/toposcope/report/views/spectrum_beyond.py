"""The answer of `spectrum`: is an encoding good for a context longer than that of training, and why."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, get_args

from toposcope.report.blocks import Column, Command, Listing, Page, Paragraphs, Summary
from toposcope.report.commands import model_word
from toposcope.spectra.beyond import Beyond, Verdict
from toposcope.spectra.encoding_spectrum import EncodingSpectrum
from toposcope.spectra.points import Point
from toposcope.spectra.spectrum import TRAINED, SpectrumResult

OTHERWISE = "if it was another: --trained N"
REACH = 32  # the largest factor of yarn that is offered
GROUPS = (("bad", "expected to fail"), ("after training", "only after more training"), ("cannot tell", "cannot tell"))
PREDICTED = "Predicted from the encoding alone: "
WORTH = "A prediction, not a measurement: docs/spectrum.md has losses that were measured."


def beyond_blocks(page: Page, result: SpectrumResult) -> tuple[list[Any], list[Any]]:
    """One sentence, what it is worth and what to try next; then all numbers behind it."""
    told = [(each, each.beyond) for each in result.encodings if each.beyond is not None]
    several = [_table(page, told, short=True)] if len(told) > 1 else []
    line, measure = _next(result), _measuring(result)
    trying = [] if line is None else [Command("Would yarn reach that far? Try:", line)]
    trying += [] if measure is None else [Command("To measure it on a long text of yours (slow on a CPU):", measure)]
    answer = [Summary((_sentence(told, _source(result)),)), *several, Paragraphs((WORTH,), soft=True), *trying]
    return answer, [_table(page, told), Paragraphs((_columns(told),), soft=True)]


def _next(result: SpectrumResult) -> str | None:
    """The command that tries yarn where a model's own encoding, asked alone, comes to new angles."""
    first = result.encodings[0].beyond
    if not result.provenance.subjects or result.provenance.options.get("encodings") or first is None:
        return None
    by = -(-first.context // first.trained)
    if first.reason != "new phases" or by > REACH:
        return None
    trained = result.provenance.options.get("trained")
    words = ["toposcope spectrum --model", model_word(result), f"rope:scaling=yarn,factor={by}"]
    words += ["--context", length(first.context), *(() if trained is None else ("--trained", str(trained)))]
    return " ".join(words)


def _measuring(result: SpectrumResult) -> str | None:
    """The command that measures the first good one of the encodings that were asked for, in the model."""
    good = next((each.beyond for each in result.encodings[1:] if each.beyond and each.beyond.verdict == "good"), None)
    if good is None or not result.provenance.subjects:
        return None
    spec = next(each.spec for each in result.encodings if each.beyond is good)
    words = ["toposcope loss", model_word(result), "--text FILE --sequences 1 --beyond --encoding", shlex.quote(spec)]
    return " ".join([*words, "--tokens", length(good.context)])


def _source(result: SpectrumResult) -> str:
    """From what the trained context was assumed; '' where the result does not tell."""
    first = result.encodings[0]
    if not result.provenance.subjects or first.beyond is None:
        return ""
    if first.beyond.trained == first.parameters.get("original_context"):
        return "the original context of its scaling"
    if result.provenance.subjects[0].format == "gguf":
        return "context_length in the file"
    # where a configuration claims no context, the same number stands in
    return "" if first.beyond.trained == TRAINED else "the context that its configuration claims"


def _sentence(told: Sequence[tuple[EncodingSpectrum, Beyond]], source: str) -> str:
    first = told[0][1]
    asked = f"{first.context:,} positions{_after([each for _, each in told], source)}"
    if len(told) == 1:
        spec = told[0][0].spec
        if first.verdict == "cannot tell":
            return f"Whether {spec} is good for {asked} cannot be told from the encoding: {why(first)}."
        verdict = {"bad": "is expected to fail at", "after training": "needs more training for"}
        return f"{PREDICTED}{spec} {verdict.get(first.verdict, 'is good for')} {asked}: {why(first)}."
    groups = {verdict: [each.spec for each, met in told if met.verdict == verdict] for verdict in get_args(Verdict)}
    good = ", ".join(groups["good"])
    opening = f"{PREDICTED}{f'good for {asked}: {good}' if good else f'none is good for {asked}'}"
    return "; ".join([opening, *(f"{name}: {', '.join(groups[key])}" for key, name in GROUPS if groups[key])]) + "."


def _after(met: Sequence[Beyond], source: str) -> str:
    """After training on how many positions, where that is the same for all."""
    lengths = sorted({each.trained for each in met})
    if len(lengths) > 1:
        guessed = next((each.trained for each in met if each.assumed), None)
        return "" if guessed is None else f" (trained on {guessed:,} where nothing is said; {OTHERWISE})"
    assumed = f" (assumed{f' from {source}' if source else ''}; {OTHERWISE})" if met[0].assumed else ""
    return f" after training on {lengths[0]:,}{assumed}"


def why(met: Beyond) -> str:
    """Why an encoding is good or bad, in words."""
    if met.reason == "slowed":
        return f"no new angle, but a step to the next token turns {met.step:.3g} times as far as in training"
    if met.reason == "new phases":
        one = met.new_pairs == 1
        return (
            f"from distance {met.new_from:,} on, {met.new_pairs} of the {met.pairs} channel pairs "
            f"reach{'es' * one} angles never seen in training"
        )
    if met.reason == "nothing new" and met.pairs is not None:
        return f"none of the {met.pairs} channel pairs reaches an angle never seen in training"
    return {
        "within": "it is no longer than training",
        "window": "its window is no longer than training",
        "nothing new": "all its values were there in training",
        "new values": f"from distance {met.new_from or 0:,} on the bias has values new to it, which may do no harm",
        "new positions": f"positions from {met.new_from or 0:,} on have no trained vector",
        "no position": "this head has no position, and only the mask tells tokens apart",
        "not by distance": "its bias goes by both positions, not by distance",
    }[met.reason]


def _table(page: Page, told: Sequence[tuple[EncodingSpectrum, Beyond]], *, short: bool = False) -> Listing:
    rows = [
        {
            "encoding": each.spec.replace(",", ", "),  # a narrow column breaks it there
            "verdict": met.verdict,
            "trained": met.trained,
            "unturned": None if met.pairs is None else f"{met.unturned} of {met.pairs}",
            "new_pairs": None if met.pairs is None else f"{met.new_pairs or 0} of {met.pairs}",
            "new_from": _new_from(met, short=short),
            "step": None if met.step is None else f"{met.step:.3g}",
            "factor": _at(each.points, met.context),
            "why": why(met),
        }
        for each, met in told
    ]
    columns = [
        Column("encoding", "encoding", "wrap"),
        Column("verdict", f"at {length(told[0][1].context)}", "plain"),
        Column("unturned", "not turned"),
        Column("new_pairs", "pairs at new angles"),
        Column("new_from", "unseen from"),
        Column("step", "step"),
        Column("factor", "shared content"),
        Column("why", "why", "wrap"),
    ]
    if len({met.trained for _, met in told}) > 1:
        columns.insert(2, Column("trained", "trained on"))
    answer = ("encoding", "verdict", "trained", *(("new_pairs",) if _turning(told) else ()), "new_from")
    if short:
        columns = [column for column in columns if column.key in answer]
    else:
        columns = [column for column in columns if column.key != "new_pairs"]
    brief = tuple(column.key for column in columns if column.key != "why")
    name = "beyond training, in short" if short else "beyond training"
    return Listing("", "", page.rows(name, rows), tuple(columns), top=len(rows), brief=brief)


def _turning(told: Sequence[tuple[EncodingSpectrum, Beyond]]) -> bool:
    return any(met.pairs is not None for _, met in told)


def _columns(told: Sequence[tuple[EncodingSpectrum, Beyond]]) -> str:
    pairs = (
        "not turned: channel pairs that have not turned once within the trained context. step: radians that the "
        "fastest pair turns per token, relative to training (below 1, neighbours look nearer than in training). "
    )
    return (
        f"{pairs if _turning(told) else ''}unseen from: the first distance with an "
        "angle or a value that training did not show. shared content: the norm of the logits of tokens with the same "
        "content, relative to that without position (1: position has no effect)."
    )


def _new_from(met: Beyond, *, short: bool) -> str | None:
    """The first distance with something new, in short only where the context reaches it."""
    if met.reason in ("no position", "not by distance"):
        return None
    if met.new_from is None or (short and met.new_from >= met.context):
        return f"not by {length(met.context)}"
    return f"{met.new_from:,}"


def _at(points: Sequence[Point], context: int) -> str | None:
    return next((factor(point) for point in points if point.context == context), None)


def length(positions: int) -> str:
    """128k, or a number that is no multiple of 1024 as it is."""
    return f"{positions // 1024}k" if positions % 1024 == 0 else f"{positions:,}"


def factor(point: Point) -> str:
    """The shared-content factor, marked where it is a lower bound."""
    return ("≥ " if point.statement == "bound" else "") + str(number(point.lambda_max_over_n))


def number(value: float | None) -> str | None:
    """A factor in four digits."""
    if value is None:
        return None
    if 0.001 <= abs(value) < 10 or value == 0:
        return f"{value:.4f}"
    return (
        f"{value:.4g}" if 10 <= abs(value) < 1000 else f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    )
