"""The view of `spectrum`: is an encoding good for a long context, and why; then its kernel, context by context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Paragraphs, Row, Summary, shown
from toposcope.report.views.spectrum_beyond import beyond_blocks, factor, number
from toposcope.spectra.encoding_spectrum import EncodingSpectrum
from toposcope.spectra.points import Point
from toposcope.spectra.spectrum import SpectrumResult

KNOWN = {"theorem": "exact", "measured": "measured", "bound": "bound"}
LONGEST = 58  # characters of names in the title
ACROSS = 5  # encodings side by side in one table
SHOWN_OFFSETS = slice(1, 7)


def view(result: SpectrumResult, page: Page) -> None:
    """Add the sections of a spectrum."""
    found = result.encodings
    names = [each.spec for each in found]
    listed = ", ".join(names)
    page.title = page.title or (
        f"Positional encodings: {listed}" if len(listed) <= LONGEST else f"{len(names)} positional encodings"
    )
    page.facts += [
        (f"{result.contexts[-1]:,}", "longest context"),
        (str(len(found)), "encoding" if len(found) == 1 else "encodings"),
    ]
    answered = any(each.beyond is not None for each in found)
    if answered:
        answer, numbers = beyond_blocks(page, result)
        page.add("Summary", *answer)
        page.add("In numbers", *numbers, detail=True)
    page.add("Shared content", Summary(tuple(_summary(found))), detail=answered)
    pictures = Row(tuple(_by_context(page, found)))
    tables = _side_by_side(page, found, result.contexts) if len(found) > 1 else []
    page.add("By context", *tables, pictures if pictures.blocks else None, detail=answered)
    page.add("By offset", _by_offset(page, found), detail=answered)
    for each in found:
        blocks: list[Any] = [Paragraphs(tuple(_about(each)), soft=True)]
        if each.points:
            blocks.append(_listing(page, f"{each.spec} by context", each.points, "factor"))
        if each.logit_points:
            words = f"The bias as a summand of the logits (head {each.head})."
            blocks.append(_listing(page, f"{each.spec} as a summand", each.logit_points, "norm / n", words))
        blocks.append(Paragraphs(tuple(_skipped(each)), soft=True) if each.skipped else None)
        page.add(each.spec, *blocks, detail=answered)
    page.add("How to read it", Paragraphs(tuple(_legend(found)), soft=True), detail=answered)


# ------------------------------------------------------------------ sentences
def _summary(found: Sequence[EncodingSpectrum]) -> list[str]:
    sentences: list[str] = []
    for each in found:
        if each.points:
            first, last = each.points[0], each.points[-1]
            there = factor(last) if last.statement != "bound" else f"{factor(last)}, ≤ {number(last.upper)}"
            hardly = "hardly " if last.lambda_max_over_n > 0.9 * first.lambda_max_over_n else ""
            meaning = "" if sentences else "; 1: position has no effect"
            sentences.append(
                f"{each.spec}: the shared-content factor {hardly}falls, from {factor(first)} at {first.context:,} "
                f"positions to {there} at {last.context:,} ({KNOWN[last.statement]}{meaning})."
            )
    ends = [(*_range(each.points[-1]), each.spec) for each in found if each.points]
    if len(ends) > 1:
        least, most = min(ends), max(ends, key=lambda end: end[1])
        if least[1] <= min(end[0] for end in ends if end is not least):
            sentences.append(f"At the longest context the factor is smallest for {least[2]}.")
        if most[0] >= max(end[1] for end in ends if end is not most):
            sentences.append(f"At the longest context the factor is largest for {most[2]}.")
    return sentences


def _range(point: Point) -> tuple[float, float]:
    """Between which numbers the norm lies: one number, but for bounds."""
    value = point.lambda_max_over_n
    return value, point.upper if point.statement == "bound" and point.upper is not None else value


def _about(each: EncodingSpectrum) -> list[str]:
    kernel = each.kernel.replace("in logit_points", "in the second table")
    words = [f"{_sentence(each.title)}.", f"Kernel: {kernel}.", *map(_sentence, each.notes)]
    if each.offsets is not None and each.kernel_at is not None:
        pairs = zip(each.offsets[SHOWN_OFFSETS], each.kernel_at[SHOWN_OFFSETS], strict=True)
        words.append("At offset " + ", ".join(f"{t}: {value:.3g}" for t, value in pairs) + ".")
    if each.symbol_range is not None:
        low, high = each.symbol_range
        words.append(f"Its symbol runs from {low:.4g} to {high:.4g}: all eigenvalues lie between, at every context.")
    return words


def _skipped(each: EncodingSpectrum) -> list[str]:
    told = [f"Not computed: {sentence}" for sentence in each.skipped[:2]]
    if len(each.skipped) > 2:
        told.append(f"Not computed: {len(each.skipped) - 2} longer contexts, for the same reason.")
    return told


def _legend(found: Sequence[EncodingSpectrum]) -> list[str]:
    points = [point for each in found for point in (*each.points, *each.logit_points)]
    marks = {point.effective_rank_statement for point in points if point.effective_rank is not None}
    ways = {
        "theorem": "exact, by a closed form up to rounding",
        "measured": "measured, by a dense route or by Lanczos",
        "bound": "a bound (≥), at most what that column says",
    }
    used = {point.statement for point in points}
    return [
        "factor: the shared-content factor, the kernel's spectral norm over the context: the norm of the logits of "
        "tokens with the same content, relative to that without position (1: position has no effect). eff. rank: exp "
        "of the spectrum's entropy.",
        f"The norm is {'; '.join(words for key, words in ways.items() if key in used)}.",
        *(
            words
            for words, there in (
                ("* after a rank: numerical, values above n eps (eps 2.2e-16) times the largest.",
                 any(point.rank_statement == "numerical" for point in points)),
                ("≥ before a condition: values below n eps times the largest exist; it is larger.",
                 any(point.condition_statement == "at least" for point in points)),
                ("law: 1 - ln(n/2.52)/ln(base) - 1/h (S5g), an approximation for 1 << n << base.",
                 any(point.law is not None for point in points)),
                ("≤ before an effective rank: a bound, from a circulant.", "at most" in marks),
                ("~ before an effective rank: its limit for long contexts, or an estimate from a circulant.",
                 bool(marks & {"estimate", "limit"})),
            )
            if there
        ),
    ]  # fmt: skip


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


# ------------------------------------------------------------------ tables
def _side_by_side(page: Page, found: Sequence[EncodingSpectrum], contexts: Sequence[int]) -> list[Listing]:
    at = [{point.context: point for point in each.points} for each in found]
    rows = [
        {"context": n, **{f"encoding {i}": factor(known[n]) if n in known else None for i, known in enumerate(at)}}
        for n in contexts
    ]
    table = page.rows("factor by context", rows)
    made = []
    for first in range(0, len(found), ACROSS):
        chosen = range(first, min(first + ACROSS, len(found)))
        columns = (Column("context", "context"), *(Column(f"encoding {i}", found[i].spec) for i in chosen))
        words = "Shared-content factor (1: position has no effect)."
        made.append(Listing("Side by side", words, table, columns, top=len(rows)))
    return made


def _listing(page: Page, name: str, points: Sequence[Point], norm: str, sentence: str = "") -> Listing:
    rows = [
        {
            "context": point.context,
            "norm": factor(point),
            "upper": number(point.upper),
            "effective": _effective_rank(point),
            "ranked": None if point.rank is None else shown(point.rank) + "*" * (point.rank_statement == "numerical"),
            "conditioned": _condition(point),
            "law": number(point.law),
            "residual": None if point.residual is None else f"{point.residual:.0e}",
            "known": KNOWN[point.statement],
            "method": point.method,
        }
        for point in points
    ]
    columns = [Column("context", "context"), Column("norm", norm)]
    if any(point.upper is not None for point in points):
        columns.append(Column("upper", "at most"))
    columns += [Column("effective", "eff. rank"), Column("ranked", "rank"), Column("conditioned", "condition")]
    if any(point.law is not None for point in points):
        columns.append(Column("law", "law"))
    if any(point.residual is not None for point in points):
        columns.append(Column("residual", "residual"))
    columns.append(Column("known", "norm is", "plain"))
    brief = tuple(column.key for column in columns)
    columns.append(Column("method", "method", "wrap"))
    return Listing(name, sentence, page.rows(name, rows), tuple(columns), top=len(rows), brief=brief)


# ------------------------------------------------------------------ pictures
def _by_context(page: Page, found: Sequence[EncodingSpectrum]) -> list[Chart]:
    norms: list[dict[str, Any]] = []
    ranks: list[dict[str, Any]] = []
    for each in found:
        for point in each.points:
            at = {"encoding": each.spec, "context": point.context}
            norms.append({**at, "curve": "kernel", "factor": point.lambda_max_over_n, "is": KNOWN[point.statement]})
            if point.statement == "bound":
                norms.append({**at, "curve": "law or upper bound", "factor": point.upper, "is": "an upper bound"})
            if point.law is not None:
                norms.append({**at, "curve": "law or upper bound", "factor": point.law, "is": "the law (see below)"})
            if point.effective_rank is not None:
                ranks.append({**at, "rank": point.effective_rank, "is": point.effective_rank_statement})
    norms = [row for row in norms if row["factor"] > 0]
    dashed = sorted({row["is"] for row in norms if row["curve"] != "kernel"})
    dash = {"curve": ("kernel", "law or upper bound")} if dashed else None
    words = "The kernel's spectral norm over context (both axes logarithmic): 1 means that position has no effect."
    words += f" Dashed: {' and '.join(dashed)}." if dashed else ""
    words += " Where only bounds are known, the line is the lower one." if "an upper bound" in dashed else ""
    rank_words = "exp of the spectrum's entropy (both axes logarithmic): how many directions the kernel tells apart."
    rank_words += " Some are upper bounds: see the tables." if any(row["is"] == "at most" for row in ranks) else ""
    curves: dict[str, Any] = {"log_x": True, "log_y": True, "colour": "encoding"}
    made = []
    if norms:
        spec = charts.line("context", "factor", dash=dash, points=dash is None, **curves)
        table = page.rows("norm by context", norms)
        made.append(Chart("Shared-content factor", words, table, _painted(spec, found), in_figure=True))
    if ranks:
        spec = charts.line("context", "rank", points=True, **curves)
        table = page.rows("rank by context", ranks)
        made.append(Chart("Effective rank", rank_words, table, _painted(spec, found), in_figure=True))
    return made


def _by_offset(page: Page, found: Sequence[EncodingSpectrum]) -> Chart | None:
    rows = [
        {"encoding": each.spec, "offset": t, "kernel": value}
        for each in found
        if each.offsets is not None and each.kernel_at is not None
        for t, value in zip(each.offsets, each.kernel_at, strict=True)
        if t > 0 and math.isfinite(value)
    ]
    if not rows:
        return None
    words = "What position makes of constant content at offset t (logarithmic), where it is 1 at t = 0."
    spec = charts.line("offset", "kernel", colour="encoding", log_x=True, points=True, zero=True)
    table = page.rows("kernel by offset", rows)
    drawn = [each for each in found if any(row["encoding"] == each.spec for row in rows)]
    return Chart("The kernel at each distance", words, table, _painted(spec, drawn), in_figure=True)


def _painted(spec: charts.Spec, found: Sequence[EncodingSpectrum]) -> charts.Spec:
    return charts.in_colours_of_encodings(spec, "encoding", [each.spec for each in found])


# ------------------------------------------------------------------ numbers
def _condition(point: Point) -> str | None:
    if point.condition is None:
        return None
    return ("≥ " if point.condition_statement == "at least" else "") + f"{point.condition:.3g}"


def _effective_rank(point: Point) -> str | None:
    value = point.effective_rank
    if value is None:
        return None
    mark = {"at most": "≤ ", "estimate": "~ ", "limit": "~ "}.get(point.effective_rank_statement, "")
    return mark + (f"{value:,.0f}" if value >= 1000 else f"{value:.4g}")
