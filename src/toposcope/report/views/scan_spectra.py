"""The spectral part of the view of `scan`: kernels over offsets, frequency use, biases, other encodings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from toposcope.report import charts
from toposcope.report.blocks import (
    Chart,
    Column,
    Listing,
    Matrix,
    Measure,
    Page,
    Pairs,
    Paragraphs,
    Row,
    count,
    shown,
)
from toposcope.report.commands import command
from toposcope.scanning.result import ScanHead, ScanResult
from toposcope.spectra.of_heads import FAST, FAST_ON_SMOLLM2, HeadSpectra
from toposcope.spectra.of_model import EncodingSpectra, WhatIf

POSITIONAL = 6  # kernels that are drawn together
RANKED = 12  # heads in the list by fast pairs, on a page
PARTS = {"content": "content", "position": "position", "coupling": "content x position interaction"}


def by_fast_share(heads: Iterable[ScanHead]) -> list[ScanHead]:
    """The heads by the share of Q and K in fast pairs, most first; those without any rotation are left out."""
    known = [head for head in heads if head.fast_share is not None]
    return sorted(known, key=lambda head: -(head.fast_share or 0.0))


def trace_line(result: ScanResult) -> str:
    """The command that measures what the weights only allow to guess."""
    return f"{' '.join(command(result, 'trace'))} --text random"


def ranking(page: Page, result: ScanResult) -> Listing | None:
    """The heads with most of Q and K in fast pairs: candidates, in order; a list of names it is not."""
    best = by_fast_share(result.heads)[:RANKED]
    if not best:
        return None
    columns = (
        Column("name", "head", "plain"), Column("fast_share", "Q and K in fast pairs", "percent"),
        Column("looks", "its kernel, for tokens alike", "text"),
    )  # fmt: skip
    rows = [{**vars(head), "name": f"{head.layer}.{head.head}"} for head in best]
    table = page.rows("heads by fast pairs", rows, [column.key for column in columns])
    seen = FAST_ON_SMOLLM2
    words = (
        "A heuristic: heads that look at the previous token need rotary pairs that turn by a radian or more in "
        f"{FAST} tokens, but many heads with such pairs do something else. On {seen.model} ({seen.text}, "
        f"{seen.previous} such heads of {seen.heads}) this order had an AUC of {seen.auc:.2f}, and {seen.hits} of "
        f"its first {seen.top} were such heads. "
        f"'{trace_line(result)}' measures what heads attend to."
    )
    answer = ("name", "fast_share")
    return Listing("Heads by fast rotary pairs", words, table, columns, top=6, answer=answer, answer_sentence=words)


def kernels(page: Page, result: ScanResult, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The kernels of the most positional heads, and where all of them peak."""
    known = [row for row in rows if row["kernel"]]
    if not known:
        why = "position enters the input only, not at all, or in a way that no table over offsets holds"
        return [Paragraphs((f"No kernel over offsets: {why}.",), soft=True)]
    known = [row for row in known if row["peak_share"] is not None] or known
    best = sorted(known, key=lambda row: -(row["contrast"] or 0.0))[:POSITIONAL]
    curves = page.rows(
        "kernels",
        [
            {"head": f"{row['layer']}.{row['head']}", "offset": t, "kernel": g}
            for row in best
            for t, g in enumerate(row["kernel"], row["kernel_from"])
        ],
    )
    counts = Counter(_distance(row["peak_offset"]) for row in rows if row["peak_offset"] is not None)
    order = ["ahead", "0", "1 back", "2 to 8 back", "9 to 32 back", "farther back"]
    pictures: list[Any] = [
        Chart(
            "The sharpest kernels g(t)",
            f"The {len(best)} heads whose kernel rises most above its own mean (heuristic, from the weights alone).",
            curves,
            charts.line("offset", "kernel", colour="head", zero=True),
            in_figure=True,
        )
    ]
    if counts:
        peaks = page.rows("peak offsets", [{"peak": name, "heads": counts.get(name, 0)} for name in order])
        pictures.append(
            Chart(
                "Where kernels peak",
                "How many heads have their largest kernel at which distance; not what they attend to.",
                peaks,
                charts.bars("peak", "heads", order),
            )
        )
    return [
        Paragraphs((_kernels_in_words(result, [(name, counts[name]) for name in order if counts[name]]),)),
        Row(tuple(pictures)),
    ]


def _kernels_in_words(result: ScanResult, counts: Sequence[tuple[str, int]]) -> str:
    words = "Heuristic, not what heads attend to."
    if counts:
        (first, heads), *others = (("at offset 0" if name == "0" else name, n) for name, n in counts)
        peaks = [f"{first} in {count(heads, 'head')}", *(f"{place} in {n}" for place, n in others)]
        words += f" Kernels peak {', '.join(peaks)}."
    return f"{words} {_factor_in_words(result.heads, result.spectra.context)}".strip()


def _factor_in_words(heads: Sequence[HeadSpectra], context: int) -> str:
    values = [head.lambda_max_over_n for head in heads if head.lambda_max_over_n is not None]
    if not values:
        return ""
    return f"Mean shared-content factor at {context:,} tokens: {np.mean(values):.3f} (1: position has no effect)."


def _distance(offset: int) -> str:
    if offset < 0:
        return "ahead"
    if offset <= 1:
        return ("0", "1 back")[offset]
    return "2 to 8 back" if offset <= 8 else "9 to 32 back" if offset <= 32 else "farther back"


def first_layer(page: Page, spectra: EncodingSpectra) -> list[Any]:
    """Content, position and their interaction in layer 0."""
    rows = [
        {"head": h, "part": name, "share": getattr(part, key)}
        for h, part in enumerate(spectra.first_layer)
        for key, name in PARTS.items()
        if getattr(part, key) is not None
    ]
    if not rows:
        return []
    names = list(PARTS.values())
    words = "Shares of the logits' variance, exact for tokens of the vocabulary."
    chart = Chart(
        "Shares by head",
        words,
        page.rows("layer 0 shares", rows),
        charts.stacked("head", "share", "part", names, charts.palette(names)),
    )
    table = page.rows("layer 0", [{"head": h, **vars(part)} for h, part in enumerate(spectra.first_layer)])
    columns = (Column("head", "head"), *(Column(key, name, ".2f") for key, name in PARTS.items()))
    return [chart, Listing("The same in numbers", words, table, columns, folded=True)]


def frequencies(rows: Sequence[Mapping[str, Any]]) -> Matrix | None:
    """Mean energy share by layer and channel pair, queries and keys."""
    known = [row for row in rows if row["query_energy"]]
    if not known:
        return None
    layers = list(dict.fromkeys(row["layer"] for row in known))
    width = max(len(row["query_energy"]) for row in known)
    values: dict[str, list[list[float | None]]] = {}
    for key, column in (("queries", "query_energy"), ("keys", "key_energy")):
        lines: list[list[float | None]] = []
        for layer in layers:
            shares = [row[column] for row in known if row["layer"] == layer]
            mean = np.mean([share for share in shares if len(share) == len(shares[0])], axis=0)
            lines.append([float(f"{value:.4g}") for value in mean] + [None] * (width - len(mean)))
        values[key] = lines
    words = "Mean share of the energy of {} in each channel pair; pairs are ordered from fastest to slowest."
    return Matrix(
        "Which frequencies heads use",
        "Layers down, channel pairs across: fast pairs (left) tell neighbours apart, slow ones act like content.",
        "layer",
        "pair",
        tuple(str(layer) for layer in layers),
        tuple(str(number) for number in range(width)),
        tuple(Measure(key, key.capitalize(), "sequential", words.format(key), low=0.0) for key in values),
        values,
    )


def biases(page: Page, spectra: EncodingSpectra) -> list[Any]:
    """Biases as kernels, and the table of position vectors."""
    found: list[Any] = []
    if spectra.biases:
        columns = (
            Column("head", "head"), Column("context", "context"),
            Column("lambda_max_over_n", "shared-content factor"), Column("effective_rank", "effective rank"),
            Column("statement", "known by", "text"),
        )  # fmt: skip
        sentence = "The kernel exp(b) that each head's bias puts on its attention."
        table = page.rows("biases", [vars(each) for each in spectra.biases])
        found.append(Listing("Biases as kernels", sentence, table, columns))
    if spectra.table is not None:
        part = spectra.table
        found.append(
            Pairs(
                "The table of position vectors",
                (
                    ("positions", shown(part.positions)),
                    ("numerical rank", shown(part.rank)),
                    ("effective rank", shown(part.effective_rank)),
                    ("Toeplitz share of its Gram matrix", shown(part.toeplitz_share, "percent")),
                    ("one frequency explains", f"{shown(part.sinusoid_likeness, 'percent')} of a column"),
                ),
                "A sinusoid has a Toeplitz Gram matrix and one frequency in each column.",
            )
        )
    return found


def what_if(page: Page, result: ScanResult, other: WhatIf) -> list[Any]:
    """What changes under another encoding: where kernels peak, how far they contract, what layer 0 is made of."""
    rows = [
        {
            "name": f"{mine.layer}.{mine.head}",
            "before": mine.looks,
            "after": theirs.looks,
            "factor_before": mine.lambda_max_over_n,
            "factor_after": theirs.lambda_max_over_n,
        }
        for mine, theirs in zip(result.heads, other.heads, strict=True)
        if mine.peak_offset != theirs.peak_offset
    ]
    words = [f"The kernel of {len(rows)} of {len(result.heads)} heads would peak elsewhere (heuristic)."]
    now, then = (_mean(each) for each in (result.heads, other.heads))
    known = now is not None and then is not None
    if known:
        words.append(f"Mean shared-content factor at {other.context:,} tokens: {shown(now)} now, {shown(then)} then.")
    split = [
        f"{name} {before:.2f} now, {after:.2f} then"
        for key, name in PARTS.items()
        if (before := _share(result.spectra, key)) is not None and (after := _share(other, key)) is not None
    ]
    if split:
        words.append(f"Layer 0, mean shares of the logits' variance: {'; '.join(split)}.")
    if not rows:
        return [Paragraphs(tuple(words))]
    columns = (
        Column("name", "head", "plain"), Column("before", "kernel now", "text"),
        Column("after", "kernel then", "text"),
        *((Column("factor_before", "shared-content factor now"), Column("factor_after", "then")) if known else ()),
    )  # fmt: skip
    brief = ("name", "before", "after")
    table = page.rows("what if", rows)
    return [
        Paragraphs(tuple(words)),
        Listing("Kernels that would peak elsewhere", "", table, columns, top=6, brief=brief),
    ]


def _mean(heads: Sequence[HeadSpectra]) -> float | None:
    values = [head.lambda_max_over_n for head in heads if head.lambda_max_over_n is not None]
    return float(np.mean(values)) if values else None


def _share(spectra: EncodingSpectra, key: str) -> float | None:
    values = [value for part in spectra.first_layer if (value := getattr(part, key)) is not None]
    return float(np.mean(values)) if values else None
