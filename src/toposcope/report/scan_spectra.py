"""The spectral part of the report of `scan`: kernels over offsets, frequency use, biases, other encodings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, Listing, Matrix, Measure, Page, Pairs, Paragraphs, Row, shown
from toposcope.report.scan_words import about_fast_share, by_fast_share

POSITIONAL = 6  # kernels that are drawn together
RANKED = 12  # heads in the list by fast pairs


def ranking(page: Page, rows: Sequence[Mapping[str, Any]]) -> Listing | None:
    """The heads with most of Q and K in fast pairs: candidates, in order; a list of names it is not."""
    best = by_fast_share(rows)[:RANKED]
    if not best:
        return None
    columns = (
        Column("layer", "layer"), Column("head", "head"), Column("fast_share", "Q and K in fast pairs", "percent"),
        Column("looks", "its kernel", "text"),
    )  # fmt: skip
    table = page.rows("heads by fast pairs", best, [column.key for column in columns])
    return Listing("Heads by fast rotary pairs", about_fast_share(), table, columns)


def kernels(page: Page, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The kernels of the most positional heads, and where all of them peak."""
    known = [row for row in rows if row["kernel"] and row["peak_share"] is not None]
    if not known:
        only = [row for row in rows if row["kernel"]]
        if not only:
            words = "No kernel over offsets: position enters the input only, or not at all."
            return [Paragraphs((words,), soft=True)]
        known = only
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
    peaks = page.rows("peak offsets", [{"peak": word, "heads": counts.get(word, 0)} for word in order])
    pictures: list[Any] = [
        Chart(
            "g(t) of the heads with the sharpest kernels",
            f"The {len(best)} heads whose kernel rises most above its own mean (heuristic, from the weights alone).",
            curves,
            charts.line("offset", "kernel", colour="head", zero=True),
        )
    ]
    if counts:
        pictures.append(
            Chart(
                "Where kernels peak",
                "How many heads have their largest kernel at which distance; not what they attend to.",
                peaks,
                charts.bars("peak", "heads", order),
            )
        )
    return [Row(tuple(pictures))]


def _distance(offset: int) -> str:
    if offset < 0:
        return "ahead"
    if offset <= 1:
        return ("0", "1 back")[offset]
    return "2 to 8 back" if offset <= 8 else "9 to 32 back" if offset <= 32 else "farther back"


def first_layer(page: Page, spectra: Mapping[str, Any]) -> Chart | None:
    """Content, position and coupling in layer 0."""
    parts = spectra.get("first_layer") or []
    names = ["content", "position", "coupling"]
    rows = [
        {"head": h, "part": name, "share": part[name]}
        for h, part in enumerate(parts)
        for name in names
        if part[name] is not None
    ]
    if not rows:
        return None
    return Chart(
        "What layer 0's logits are made of",
        "Shares of the logits' variance: content, position, their coupling; exact for tokens of the vocabulary.",
        page.rows("layer 0 shares", rows),
        charts.stacked("head", "share", "part", names, charts.palette(names)),
    )


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


def biases(page: Page, spectra: Mapping[str, Any]) -> list[Any]:
    """Biases as kernels, and the table of position vectors."""
    found: list[Any] = []
    if spectra.get("biases"):
        columns = (
            Column("head", "head"), Column("context", "context"), Column("lambda_max_over_n", "norm over context"),
            Column("effective_rank", "effective rank"), Column("statement", "known by", "text"),
        )  # fmt: skip
        sentence = "The kernel exp(b) that each head's bias puts on its attention."
        found.append(Listing("Biases as kernels", sentence, page.rows("biases", spectra["biases"]), columns))
    table = spectra.get("table")
    if table:
        found.append(
            Pairs(
                "The table of position vectors",
                (
                    ("positions", shown(table["positions"])),
                    ("numerical rank", shown(table["rank"])),
                    ("effective rank", shown(table["effective_rank"])),
                    ("Toeplitz share of its Gram matrix", shown(table["toeplitz_share"], "percent")),
                    ("one frequency explains", f"{shown(table['sinusoid_likeness'], 'percent')} of a column"),
                ),
                "A sinusoid has a Toeplitz Gram matrix and one frequency in each column.",
            )
        )
    return found


def what_if(page: Page, own: Mapping[str, Any], other: Mapping[str, Any]) -> list[Any]:
    """Heads whose kernel would peak elsewhere under another encoding."""
    rows = [
        {
            "layer": mine["layer"],
            "head": mine["head"],
            "before": mine["looks"],
            "after": theirs["looks"],
            "norm_before": mine["lambda_max_over_n"],
            "norm_after": theirs["lambda_max_over_n"],
        }
        for mine, theirs in zip(own["heads"], other["heads"], strict=True)
        if mine["peak_offset"] != theirs["peak_offset"]
    ]
    words = f"The kernel of {len(rows)} of {len(own['heads'])} heads would peak elsewhere (heuristic)."
    if not rows:
        return [Paragraphs((words,))]
    columns = (
        Column("layer", "layer"), Column("head", "head"), Column("before", "kernel now", "text"),
        Column("after", "kernel then", "text"), Column("norm_before", "norm now"), Column("norm_after", "norm then"),
    )  # fmt: skip
    return [Listing("Kernels that would peak elsewhere", words, page.rows("what if", rows), columns)]
