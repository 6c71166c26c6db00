"""The answer of `spectrum`: is an encoding good for a context longer than that of training, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from toposcope.report.blocks import Column, Listing, Page, Paragraphs, Summary
from toposcope.spectra.beyond import Beyond, Verdict
from toposcope.spectra.encoding_spectrum import EncodingSpectrum
from toposcope.spectra.points import Point

GROUPS = (("bad", "bad"), ("after training", "only after more training"), ("cannot tell", "cannot tell"))
WORTH = (
    "A heuristic that reads the encoding and no weights; the documentation has it beside the measured loss of "
    "SmolLM2 under five scalings. Kernels by context are below; in a terminal, with --full."
)


def beyond_blocks(page: Page, found: Sequence[EncodingSpectrum]) -> list[Any]:
    """One sentence, one table, and what both are worth."""
    told = [(each, each.beyond) for each in found if each.beyond is not None]
    return [Summary((_sentence(told),)), _table(page, told), Paragraphs((_columns(told), WORTH), soft=True)]


def _sentence(told: Sequence[tuple[EncodingSpectrum, Beyond]]) -> str:
    first = told[0][1]
    asked = f"{first.context:,} positions{_after([each for _, each in told])}"
    if len(told) == 1:
        spec = told[0][0].spec
        if first.verdict == "cannot tell":
            return f"Whether {spec} is good for {asked} cannot be told from the encoding: {why(first)}."
        verdict = "good only after more training" if first.verdict == "after training" else first.verdict
        return f"{spec} is {verdict} for {asked}: {why(first)}."
    groups = {verdict: [each.spec for each, met in told if met.verdict == verdict] for verdict in get_args(Verdict)}
    good = ", ".join(groups["good"])
    opening = f"Good for {asked}: {good}" if good else f"None is good for {asked}"
    return "; ".join([opening, *(f"{name}: {', '.join(groups[key])}" for key, name in GROUPS if groups[key])]) + "."


def _after(met: Sequence[Beyond]) -> str:
    """After training on how many positions, where that is the same for all."""
    lengths = sorted({each.trained for each in met})
    if len(lengths) > 1:
        guessed = next((each.trained for each in met if each.assumed), None)
        return "" if guessed is None else f" (trained on {guessed:,} where nothing is said; --trained N)"
    return f" after training on {lengths[0]:,}{' (assumed; --trained N)' if met[0].assumed else ''}"


def why(met: Beyond) -> str:
    """Why an encoding is good or bad, in words."""
    if met.reason == "slowed":
        return f"no new angle, but a step to the next token turns {met.step:.3g} times as far as in training"
    if met.reason == "new phases":
        return (
            f"{met.unturned} of {met.pairs} channel pairs have not turned once in training, and from distance "
            f"{met.new_from:,} on {met.new_pairs} of them come to angles never seen"
        )
    if met.reason == "nothing new" and met.pairs is not None:
        return (
            f"{met.unturned} of {met.pairs} channel pairs have not turned once in training, and none comes to an "
            "angle never seen"
        )
    return {
        "within": "it is no longer than training",
        "window": "its window is no longer than training",
        "nothing new": "all its values were there in training",
        "new values": f"from distance {met.new_from or 0:,} on the bias has values never seen, though nothing turns",
        "new positions": f"positions from {met.new_from or 0:,} on have no trained vector",
        "no position": "this head has no position, and only the mask tells tokens apart",
        "not by distance": "its bias goes by both positions, not by distance",
    }[met.reason]


def _table(page: Page, told: Sequence[tuple[EncodingSpectrum, Beyond]]) -> Listing:
    rows = [
        {
            "encoding": each.spec.replace(",", ", "),  # a narrow column breaks it there
            "verdict": met.verdict,
            "trained": met.trained,
            "unturned": None if met.pairs is None else f"{met.unturned} of {met.pairs}",
            "new_from": _new_from(met),
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
        Column("new_from", "new from"),
        Column("step", "step"),
        Column("factor", "factor"),
        Column("why", "why", "wrap"),
    ]
    if len({met.trained for _, met in told}) > 1:
        columns.insert(2, Column("trained", "trained"))
    brief = tuple(column.key for column in columns if column.key != "why")
    return Listing("", "", page.rows("beyond training", rows), tuple(columns), top=len(rows), brief=brief)


def _columns(told: Sequence[tuple[EncodingSpectrum, Beyond]]) -> str:
    pairs = (
        "not turned: channel pairs that have not turned once within the trained context. step: what the fastest pair "
        "turns per token, over training. "
    )
    return (
        f"{pairs if any(met.pairs is not None for _, met in told) else ''}new from: the first distance with an angle "
        "or value that training did not show. factor: shared-content factor (1: position has no effect)."
    )


def _new_from(met: Beyond) -> str | None:
    if met.reason in ("no position", "not by distance"):
        return None
    return f"not by {length(met.context)}" if met.new_from is None else f"{met.new_from:,}"


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
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"
