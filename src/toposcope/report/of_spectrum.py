"""The report of `spectrum`: norm, effective rank and shape of positional kernels against the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Beside, Chart, Column, Listing, Page, Says, Words

_KNOWN = {"theorem": "a closed form", "measured": "measured", "bound": "a bound"}


def build(result: Mapping[str, Any], page: Page) -> None:
    encodings = result["encodings"]
    page.line = page.line or "; ".join(each["title"] for each in encodings)
    page.facts += [(f"{result['options']['context']:,}", "longest context"), (str(len(encodings)), "encodings")]
    page.add("What to make of it", Says(tuple(_meaning(encodings))))
    page.add("By context", Beside(tuple(chart for chart in _by_context(page, encodings) if chart)))
    page.add("By offset", _kernel(page, encodings))
    for each in encodings:
        blocks: list[Any] = [Words(_about(each), soft=True)]
        if each["points"]:
            blocks.append(_listing(page, each["spec"], each["points"], "The kernel at each context."))
        if each["logit_points"]:
            words = "The bias as a summand of the logits."
            blocks.append(_listing(page, f"{each['spec']} as a summand", each["logit_points"], words))
        if each["skipped"]:
            blocks.append(Words(tuple(f"Not computed: {sentence}" for sentence in each["skipped"]), soft=True))
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
        sentences.append(
            f"{each['spec']}: the kernel's norm over context {kept} at {first['context']:,} "
            f"to {after:.3g} at {last['context']:,} ({_KNOWN[last['statement']]})."
        )
    ranked = sorted(
        (each for each in encodings if each["points"]), key=lambda e: e["points"][-1]["lambda_max_over_n"]
    )
    if len(ranked) > 1:
        sentences.append(
            f"At the longest context {ranked[0]['spec']} contracts logits of like content most, "
            f"{ranked[-1]['spec']} least."
        )
    return sentences


def _by_context(page: Page, encodings: Sequence[Mapping[str, Any]]) -> list[Chart | None]:
    norms, ranks = [], []
    for each in encodings:
        for point in each["points"]:
            at = {"encoding": each["spec"], "context": point["context"]}
            norms.append({**at, "curve": "kernel", "norm": point["lambda_max_over_n"]})
            if point["law"] is not None and point["law"] > 0:
                norms.append({**at, "curve": "law S5g", "norm": point["law"]})
            if point["effective_rank"] is not None:
                ranks.append({"encoding": each["spec"], "context": point["context"], "rank": point["effective_rank"]})
    norms = [row for row in norms if row["norm"] > 0]
    dash = {"curve": ("kernel", "law S5g")} if any(row["curve"] == "law S5g" for row in norms) else None
    return [
        Chart(
            "Norm of the kernel over context",
            "Spectral norm over context (both axes logarithmic): 1 leaves the logits of like content as they are."
            + (" Dashed: the law of S5g." if dash else ""),
            page.rows("norm by context", norms),
            charts.line("context", "norm", colour="encoding", dash=dash, log_x=True, log_y=True, points=dash is None),
        )
        if norms
        else None,
        Chart(
            "Effective rank",
            "exp of the spectrum's entropy (both axes logarithmic): how many directions the kernel tells apart.",
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
    keys = ("context", "lambda_max_over_n", "effective_rank", "rank", "condition", "statement", "method", "law")
    columns = [
        Column("context", "context"), Column("lambda_max_over_n", "norm / n"), Column("effective_rank", "eff. rank"),
        Column("rank", "rank"), Column("condition", "condition"), Column("statement", "norm known by", "text"),
        Column("method", "method", "wrap"),
    ]  # fmt: skip
    if any(point["law"] is not None for point in points):
        columns.insert(5, Column("law", "law S5g"))
    return Listing(name, sentence, page.rows(name, points, keys), tuple(columns))
