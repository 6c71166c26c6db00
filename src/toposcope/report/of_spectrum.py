"""The report of `spectrum`: norm, effective rank and shape of positional kernels against the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Page, Paragraphs, Row, Summary, shown

_KNOWN = {"theorem": "exact", "measured": "measured", "bound": "a bound"}


def build(result: Mapping[str, Any], page: Page) -> None:
    encodings = result["encodings"]
    page.line = page.line or "; ".join(each["title"] for each in encodings)
    page.facts += [(f"{result['options']['context']:,}", "longest context"), (str(len(encodings)), "encodings")]
    page.add("Summary", Summary(tuple(_meaning(encodings))))
    page.add("By context", Row(tuple(chart for chart in _by_context(page, encodings) if chart)))
    page.add("By offset", _kernel(page, encodings))
    for each in encodings:
        blocks: list[Any] = [Paragraphs(_about(each), soft=True)]
        if each["points"]:
            blocks.append(_listing(page, each["spec"], each["points"], "The kernel at each context."))
        if each["logit_points"]:
            words = "The bias as a summand of the logits."
            blocks.append(_listing(page, f"{each['spec']} as a summand", each["logit_points"], words))
        if each["skipped"]:
            blocks.append(Paragraphs(tuple(f"Not computed: {sentence}" for sentence in each["skipped"]), soft=True))
        page.add(each["spec"], *blocks)


def _about(each: Mapping[str, Any]) -> tuple[str, ...]:
    kernel = each["kernel"].replace("in logit_points", "in the second table")
    return f"{each['title']}.", f"{kernel[:1].upper()}{kernel[1:]}.", *(_sentence(note) for note in each["notes"])


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _meaning(encodings: Sequence[Mapping[str, Any]]) -> list[str]:
    sentences = []
    for each in encodings:
        points = each["points"]
        if not points:
            continue
        first, last = points[0], points[-1]
        before, after = first["lambda_max_over_n"], last["lambda_max_over_n"]
        kept = f"hardly falls, from {before:.3g}" if after > 0.9 * before else f"falls from {before:.3g}"
        there = f"{after:.3g}" if last["statement"] != "bound" else f"a value from {after:.3g} to {last['upper']:.3g}"
        sentences.append(
            f"{each['spec']}: the kernel's norm over context {kept} at {first['context']:,} "
            f"to {there} at {last['context']:,} ({_KNOWN[last['statement']]})."
        )
    ends = [(*_range(each["points"][-1]), each["spec"]) for each in encodings if each["points"]]
    if len(ends) > 1:
        least, most = min(ends), max(ends, key=lambda end: end[1])
        if least[1] <= min(end[0] for end in ends if end is not least):
            sentences.append(f"At the longest context {least[2]} contracts logits of like content most.")
        if most[0] >= max(end[1] for end in ends if end is not most):
            sentences.append(f"At the longest context {most[2]} contracts logits of like content least.")
    return sentences


def _range(point: Mapping[str, Any]) -> tuple[float, float]:
    """Between which numbers the norm lies: one number, but for bounds."""
    value = point["lambda_max_over_n"]
    return value, point["upper"] if point["statement"] == "bound" else value


def _by_context(page: Page, encodings: Sequence[Mapping[str, Any]]) -> list[Chart | None]:
    norms, ranks = [], []
    for each in encodings:
        for point in each["points"]:
            at = {"encoding": each["spec"], "context": point["context"]}
            known = _marked(point)
            norms.append({**at, "curve": "kernel", "norm": point["lambda_max_over_n"], "is": known["known"]})
            if point["statement"] == "bound":
                norms.append({**at, "curve": "law or upper bound", "norm": point["upper"], "is": "an upper bound"})
            if point["law"] is not None and point["law"] > 0:
                norms.append({**at, "curve": "law or upper bound", "norm": point["law"], "is": "the law of S5g"})
            if point["effective_rank"] is not None:
                ranks.append({**at, "rank": point["effective_rank"], "is": point["effective_rank_statement"]})
    norms = [row for row in norms if row["norm"] > 0]
    dashed = [row["is"] for row in norms if row["curve"] != "kernel"]
    dash = {"curve": ("kernel", "law or upper bound")} if dashed else None
    bounds = " Where only bounds are known, the line is the lower one." if "an upper bound" in dashed else ""
    return [
        Chart(
            "Norm of the kernel over context",
            "Spectral norm over context (both axes logarithmic): 1 leaves the logits of like content as they are."
            + (f" Dashed: {' and '.join(sorted(set(dashed)))}." if dash else "")
            + bounds,
            page.rows("norm by context", norms),
            charts.line("context", "norm", colour="encoding", dash=dash, log_x=True, log_y=True, points=dash is None),
        )
        if norms
        else None,
        Chart(
            "Effective rank",
            "exp of the spectrum's entropy (both axes logarithmic): how many directions the kernel tells apart."
            + (" Some are upper bounds: see the tables." if any(row["is"] == "at most" for row in ranks) else ""),
            page.rows("rank by context", ranks),
            charts.line("context", "rank", colour="encoding", log_x=True, log_y=True, points=True),
        )
        if ranks
        else None,
    ]


def _kernel(page: Page, encodings: Sequence[Mapping[str, Any]]) -> Chart | None:
    rows = [
        {"encoding": each["spec"], "offset": t, "kernel": value}
        for each in encodings
        if each["kernel_at"] is not None
        for t, value in zip(each["offsets"], each["kernel_at"], strict=True)
        if t > 0 and value is not None
    ]
    if not rows:
        return None
    return Chart(
        "The kernel at each distance",
        "What position makes of constant content at offset t (logarithmic), where it is 1 at t = 0.",
        page.rows("kernel by offset", rows),
        charts.line("offset", "kernel", colour="encoding", log_x=True, points=True, zero=True),
    )


def _listing(page: Page, name: str, points: Sequence[Mapping[str, Any]], sentence: str) -> Listing:
    rows = [{**point, **_marked(point)} for point in points]
    keys = ("context", "norm", "upper", "effective", "ranked", "conditioned", "known", "method", "law")
    columns = [
        Column("context", "context"), Column("norm", "norm / n", "plain"), Column("effective", "eff. rank", "plain"),
        Column("ranked", "rank", "plain"), Column("conditioned", "condition", "plain"),
        Column("known", "the norm is", "plain"), Column("method", "method", "wrap"),
    ]  # fmt: skip
    if any(point["law"] is not None for point in points):
        columns.insert(5, Column("law", "law S5g"))
    if any(point["statement"] == "bound" for point in points):
        columns.insert(2, Column("upper", "at most"))
        sentence += " ≥: a lower bound."
    if any(point["effective_rank_statement"] == "at most" and point["effective_rank"] for point in points):
        sentence += " ≤: an upper bound."
    if any(point.get("rank_statement") == "numerical" for point in points):
        sentence += " *: a numerical rank, the values above n eps times the largest."
    return Listing(name, sentence, page.rows(name, rows, keys), tuple(columns))


def _marked(point: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of a point as they are read: bounds, estimates and numerical ranks say that they are."""
    about = {"at most": "≤ ", "estimate": "~ ", "limit": "~ "}.get(point["effective_rank_statement"], "")
    numerical = "*" if point.get("rank_statement") == "numerical" else ""
    least = "≥ " if point.get("condition_statement") == "at least" else ""
    return {
        "norm": ("≥ " if point["statement"] == "bound" else "") + shown(point["lambda_max_over_n"]),
        "effective": "–" if point["effective_rank"] is None else about + shown(point["effective_rank"]),
        "ranked": "–" if point["rank"] is None else shown(point["rank"]) + numerical,
        "conditioned": "–" if point["condition"] is None else least + shown(point["condition"]),
        "known": _KNOWN[point["statement"]],
    }
