"""The view of `scan`: where the weights drive the tokens, head by head, with a page for each head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toposcope.report import charts
from toposcope.report.blocks import (
    Chart,
    Column,
    Command,
    HeadMap,
    Listing,
    Measure,
    Page,
    Pairs,
    PanelChart,
    Paragraphs,
    Row,
    Summary,
    count,
    rounded,
    shown,
)
from toposcope.report.verdicts import LETTERS, adjective, meaning, theorem, word
from toposcope.report.views import scan_spectra
from toposcope.report.views.scan_words import answer, more, says, why_none
from toposcope.scanning.result import ScanHead, ScanResult
from toposcope.scanning.sample import SampleEstimate

COMMON = 0.5  # a verdict of more heads than this share tells little of any
SUREST = 5  # verdicts in the list of those with the largest margins
_MEASURES = (
    Measure(
        "verdict", "Verdict", "category",
        "What a theorem says of the head acting alone; faded where rounding of the stored weights could change it.",
        words=LETTERS, faded_unless="robust",
    ),
    Measure(
        "growth_index", "Growth", "diverging",
        "Positive share of V O's spectrum (heuristic): above 0.5 growing directions prevail; random gives 0.5.",
        low=0.0, high=1.0, harm=True, middle=0.5,
    ),
    Measure(
        "peak_offset", "Peak offset", "logarithmic",
        "Offset at which the head's mean kernel is largest (heuristic); it is not what the head attends to.",
        "integer",
    ),
    Measure(
        "fast_share", "Fast pairs", "sequential",
        "Share of Q and K in rotary pairs that turn by a radian or more in 8 tokens (heuristic).", "percent", low=0.0,
    ),
    Measure(
        "contrast", "Kernel contrast", "sequential",
        "How far its kernel rises at its peak above its mean over near offsets, of 1 in all (heuristic).", low=0.0,
    ),
    Measure(
        "peak_share", "Peak share", "sequential",
        "How much of its amplitude agrees at the kernel's peak (heuristic); slow pairs agree everywhere.",
        low=0.0, high=1.0,
    ),
    Measure(
        "lambda_max_over_n", "Shared-content factor", "sequential",
        "Norm of the positional kernel over context (heuristic): at 1 position has no effect on what tokens share.",
        low=0.0,
    ),
    Measure(
        "margin", "Margin", "logarithmic",
        "Relative change of V and O that the verdict survives; pale heads are decided by a hair.", "percent",
    ),
    Measure(
        "pair_index", "Pair", "diverging",
        "Do small differences between tokens grow (above 0) or shrink (heuristic)?", harm=True,
    ),
    Measure(
        "coupling", "Content x position", "sequential",
        "Layer 0 only: the share of the logits' variance in which content and position act together.", low=0.0,
    ),
)  # fmt: skip
# The columns of the head table, of every head's own page, and (those in _BRIEF) of a terminal.
_COLUMNS = (
    Column("layer", "layer"),
    Column("head", "head"),
    Column("verdict", "verdict", "text"),
    Column("theorem", "theorem", "plain"),
    Column("scope", "scope", "text"),
    Column("exact", "exact", "text"),
    Column("margin", "margin", "percent"),
    Column("robust", "survives", "text"),
    Column("alpha", "max Re eig(V O)"),
    Column("omega", "min Re eig(V O)"),
    Column("growth_index", "growth", ".3f"),
    Column("spread_index", "spread", ".3f"),
    Column("pair_index", "pair", ".3f"),
    Column("fast_share", "fast pairs", "percent"),
    Column("looks", "kernel", "text"),
    Column("contrast", "kernel contrast", "percent"),
    Column("peak_share", "peak share", "percent"),
    Column("lambda_max_over_n", "shared-content factor"),
    Column("cond_VO", "condition of V O"),
    Column("certified", "certificate", "plain"),
    Column("remarks", "remarks", "text"),
)
# Which head a page opens at: that with most of the first that is known, and how that is called.
_FIRST = (
    ("fast_share", "largest share of Q and K in fast rotary pairs"),
    ("contrast", "sharpest kernel"),
    ("margin", "verdict with the largest margin"),
)
_BRIEF = ("layer", "head", "verdict", "margin", "robust", "growth_index", "spread_index", "pair_index")


def view(result: ScanResult, page: Page) -> None:
    """Add the sections of a scan."""
    if not result.heads:
        page.add("No head to analyse", Paragraphs((why_none(result),)))
        return
    heads = result.heads
    page.skipped += [(each.what, each.why) for each in result.skipped]
    page.facts += [
        (f"{len(heads)}", "heads"),
        (f"{len({head.layer for head in heads})}", "layers"),
        *((f"{number}", adjective(verdict)) for verdict, number in result.model.counts.items()),
        (f"{result.spectra.context:,}", "context"),
    ]
    rows = _rows(result)
    opened = _opened(rows)
    table = page.rows("heads", rows)
    guessed = bool(scan_spectra.by_fast_share(heads))
    measure = Command("To measure what heads look at ([hf] extra):", scan_spectra.trace_line(result))
    page.add("Summary", Summary(tuple(answer(result))), measure if guessed else None)
    page.add("Head by head", _map(table, rows, opened))
    if sentences := more(result):
        page.add("More from these weights", Summary(tuple(sentences)), full=True)
    page.add("Verdicts", _verdicts(page, heads))
    page.add("The surest verdicts", _surest(page, heads), full=True)
    if result.estimate:
        page.add("Estimate for the whole model", _estimate(page, result.estimate))
    if result.random_baseline:
        page.add("Against a random baseline", _baseline(result))
    page.add("Regimes by depth", Row((_regimes(page, heads), _growth(page, heads))), detail=True)
    page.add("Layers as wholes", _layers(page, result), detail=True)
    page.add("Eigenvalues of V O", _clouds(page, heads), detail=True)
    page.add("Heads that can tell neighbours apart", scan_spectra.ranking(page, result))
    page.add("Positional kernels", *scan_spectra.kernels(page, result, rows), full=True)
    page.add("What layer 0's logits are made of", *scan_spectra.first_layer(page, result.spectra), full=True)
    page.add("Frequency use", scan_spectra.frequencies(rows), detail=True)
    page.add("Biases and position tables", *scan_spectra.biases(page, result.spectra))
    for other in result.what_if:
        title = "Without position" if other.encoding == "none" else f"With {other.encoding} in its place"
        page.add(title, *scan_spectra.what_if(page, result, other))
    sentence = (
        "Margins are relative changes of V and O below which a verdict stays; 'survives': the rounding of the stored "
        "weights. Growth, spread and pair are heuristics."
    )
    page.add("Every head", Listing("All heads", sentence, table, _COLUMNS, brief=_BRIEF), detail=True)


def _map(table: str, rows: Sequence[Mapping[str, Any]], opened: str) -> HeadMap:
    return HeadMap(
        "Layers down, heads across",
        f"Each cell is a head; choose one to read about it. {opened}",
        table,
        measures(rows),
        facts=_COLUMNS[2:],
        charts=_panel_charts(),
        in_figure=True,
        mean="growth_index",
    )


def measures(rows: Sequence[Mapping[str, Any]]) -> tuple[Measure, ...]:
    """What the map of these rows can be coloured by; first what tells heads apart.

    That is the verdict, unless most heads have the same: then the share of fast pairs, or growth.
    """
    found = [measure for measure in _MEASURES if any(row[measure.key] is not None for row in rows)]
    most = max(Counter(row["verdict"] for row in rows).values(), default=0)
    if most <= COMMON * len(rows):
        return tuple(found)
    telling = next((each for key in ("fast_share", "growth_index") for each in found if each.key == key), None)
    return tuple(found if telling is None else [telling, *(each for each in found if each is not telling)])


def map_rows(result: ScanResult) -> list[dict[str, Any]]:
    """The rows of the map without their lists, as the web page keeps them."""
    rows = _rows(result) if result.heads else []
    return [{key: value for key, value in row.items() if not isinstance(value, list)} for row in rows]


def _rows(result: ScanResult) -> list[dict[str, Any]]:
    """One flat row per head, lists where the head's own charts need them."""
    heads, split = result.heads, result.spectra.first_layer
    made = ("theorem", "contrast", "certified", "remarks")
    keys = [column.key for column in _COLUMNS if column.key not in made]
    rows = []
    for head in heads:
        proof = head.certificate
        rows.append(
            {
                **{key: getattr(head, key) for key in keys},
                "verdict": head.verdict.value,
                "theorem": theorem(head.rule, head.verdict, head.scope),
                "peak_offset": head.peak_offset,
                "coupling": split[head.head].coupling if head.layer == 0 and head.head < len(split) else None,
                "contrast": _contrast(head),
                "remarks": ", ".join(head.warnings) or None,
                "certified": None
                if proof is None
                else f"S, N of size {len(proof.S)}; w' = {proof.w_prime:.3g}, bound {proof.bound:.3g}",
                "says": says(head),
                "shown_first": False,
                "eig_re": [real for real, _ in head.eigenvalues],
                "eig_im": [imaginary for _, imaginary in head.eigenvalues],
                "kernel_from": head.kernel_from,
                "kernel": list(head.kernel),
                "query_energy": rounded(list(head.query_energy), 3),
                "key_energy": rounded(list(head.key_energy), 3),
            }
        )
    return rows


def _opened(rows: Sequence[dict[str, Any]]) -> str:
    """Mark the head whose page is open at first, and say which and why: the first of the lists above and below."""
    for key, reason in _FIRST:
        known = [row for row in rows if row[key] is not None]
        if known:
            row = max(known, key=lambda row: float(row[key]))
            row["shown_first"] = True
            return f"{row['layer']}.{row['head']} is open: it has the {reason}."
    rows[0]["shown_first"] = True
    return f"{rows[0]['layer']}.{rows[0]['head']} is open, the first."


def _contrast(head: ScanHead) -> float | None:
    """How far the kernel rises at its peak above its mean over the offsets kept."""
    return float(max(head.kernel) - np.mean(head.kernel)) if head.kernel and head.peak_share is not None else None


# ------------------------------------------------------------------ tables
def _verdicts(page: Page, heads: Sequence[ScanHead]) -> Listing:
    rows = []
    for verdict in LETTERS:
        mine = [head for head in heads if head.verdict == verdict]
        if mine:
            rules = dict.fromkeys(theorem(head.rule, head.verdict, head.scope) for head in mine if head.rule)
            rows.append(
                {
                    "verdict": verdict,
                    "heads": len(mine),
                    "theorem": ", ".join(rules),
                    "exact": sum(head.exact for head in mine),
                    "robust": sum(head.robust for head in mine),
                }
            )
    columns: tuple[Column, ...] = (
        Column("verdict", "verdict", "text"), Column("heads", "heads"), Column("theorem", "certified by", "plain"),
        Column("exact", "exact"), Column("robust", "survive rounding"),
    )  # fmt: skip
    all_exact = all(head.exact for head in heads)
    if all_exact:
        columns = tuple(column for column in columns if column.key != "exact")
    senses = "; ".join(f"{word(str(row['verdict']))}: {meaning(str(row['verdict']))}" for row in rows)
    told = "survive rounding: sure to hold before the weights were rounded"
    told += "" if all_exact else "; exact: covered by the theorem without any reservation"
    sentence = f"Each for a head acting alone. {senses[:1].upper()}{senses[1:]}. {told[:1].upper()}{told[1:]}."
    return Listing("Heads by verdict", sentence, page.rows("verdicts", rows), columns)


def _surest(page: Page, heads: Sequence[ScanHead]) -> Listing | None:
    sure = [head for head in heads if head.margin is not None and head.rule in ("T5", "T6")]
    ranked = sorted(sure, key=lambda head: -(head.margin or 0.0))[:SUREST]
    if not ranked:
        return None
    named = [{**vars(head), "verdict": head.verdict.value, "name": f"{head.layer}.{head.head}"} for head in ranked]
    columns = (
        Column("name", "head", "plain"), Column("verdict", "verdict", "text"), Column("scope", "scope", "text"),
        Column("margin", "margin", "percent"), Column("omega", "min Re", ".2f"), Column("alpha", "max Re", ".2f"),
    )  # fmt: skip
    sentence = (
        "Margin: the relative change of V and O up to which the verdict stays, largest first. min and max Re: the "
        "range of Re eig(V O)."
    )
    return Listing("Surest verdicts", sentence, page.rows("surest", named, [c.key for c in columns]), columns)


def _estimate(page: Page, found: SampleEstimate) -> Listing:
    """What the drawn layers say about all: an estimate with intervals, not a verdict."""
    rows = [{"verdict": verdict, **vars(each)} for verdict, each in found.counts.items()]
    sentence = (
        f"An estimate from {len(found.drawn)} of {found.layers} layers, not a verdict: {found.method}; "
        f"{found.level:.0%} intervals for the {found.heads:,} heads. Any other verdict: in at most "
        f"{count(found.unseen_verdict_in_at_most_layers, 'layer')}. All else here is of the drawn layers."
    )
    columns = (
        Column("verdict", "verdict", "text"), Column("seen", "seen"), Column("estimate", "estimated", ".0f"),
        Column("low", "from", ".0f"), Column("high", "to", ".0f"), Column("at_least", "certainly at least"),
        Column("at_most", "at most"),
    )  # fmt: skip
    return Listing("Heads by verdict", sentence, page.rows("estimate", rows), columns)


def _baseline(result: ScanResult) -> Pairs:
    baseline, own = result.random_baseline, result.model
    assert baseline is not None
    counts = ", ".join(f"{number} {adjective(verdict)}" for verdict, number in baseline.counts.items())
    pairs = [
        (name.replace("_", " "), f"{shown(getattr(own, name))} here, {shown(getattr(baseline, name))} at random")
        for name in ("growth_index", "spread_index", "pair_index")
    ]
    sentence = "The same spectra in random orientation: what is left of a difference is what training put there."
    return Pairs("Here and at random", (("verdicts of the baseline", counts), *pairs), sentence)


def _layers(page: Page, result: ScanResult) -> Listing | None:
    if not result.layers:
        return None
    columns = (
        Column("layer", "layer"), Column("verdict", "verdict", "text"), Column("theorem", "theorem", "plain"),
        Column("scope", "scope", "text"), Column("margin", "margin", "percent"), Column("alpha", "max Re"),
        Column("omega", "min Re"), Column("growth_index", "growth"), Column("rank_U", "rank"),
    )  # fmt: skip
    rows = [
        {**vars(row), "verdict": row.verdict.value, "theorem": theorem(row.rule, row.verdict, row.scope)}
        for row in result.layers
    ]
    table = page.rows("layers as wholes", rows, [column.key for column in columns])
    sentence = (
        "The heads of a layer act together; only the first token (without a mask: tokens that have come together) "
        "can be judged then."
    )
    brief = ("layer", "verdict", "margin", "alpha", "omega", "growth_index", "rank_U")
    return Listing("Every layer", sentence, table, columns, folded=True, brief=brief)


# ------------------------------------------------------------------ pictures
def _panel_charts() -> tuple[PanelChart, ...]:
    return (
        PanelChart(
            "Eigenvalues of V O",
            "Right of the line directions grow, left of it they shrink; off the axis they turn.",
            {"real": "eig_re", "imaginary": "eig_im"},
            charts.plane("real", "imaginary"),
            mirror="imaginary",
        ),
        PanelChart(
            "Mean positional kernel g(t)",
            "How the rotation and bias favour an offset t = query - key, relative to the sum of amplitudes.",
            {"kernel": "kernel"},
            charts.line("offset", "kernel", zero=True, height=170),
            index="offset",
            start="kernel_from",
        ),
        PanelChart(
            "Frequency use",
            "Share of query and key energy in each channel pair, fastest first.",
            {"queries": "query_energy", "keys": "key_energy"},
            charts.folded(
                charts.line("pair", "share", colour="side", height=170), ("queries", "keys"), "side", "share"
            ),
            index="pair",
        ),
    )


def _regimes(page: Page, heads: Sequence[ScanHead]) -> Chart:
    counts = Counter((head.layer, head.verdict.value) for head in heads)
    verdicts = [verdict for verdict in LETTERS if any(head.verdict == verdict for head in heads)]
    rows = [
        {"layer": layer, "verdict": word(verdict), "heads": counts[layer, verdict]}
        for layer in dict.fromkeys(head.layer for head in heads)
        for verdict in verdicts
    ]
    return Chart(
        "Verdicts by layer",
        "How many heads of each layer fall under each verdict.",
        page.rows("regimes by layer", rows),
        charts.stacked("layer", "heads", "verdict", [word(verdict) for verdict in verdicts], charts.VERDICTS),
    )


def _growth(page: Page, heads: Sequence[ScanHead]) -> Chart:
    rows = [
        {"layer": head.layer, "head": head.head, "growth": head.growth_index}
        for head in heads
        if head.growth_index is not None
    ]
    return Chart(
        "Growth by layer",
        "A dot for each head, the line through layer means; 0.5 (dashed) is what random matrices give.",
        page.rows("growth by layer", rows, ("layer", "head", "growth")),
        charts.dots_and_mean("layer", "growth", reference=0.5, domain=(0, 1), tooltip=("layer", "head", "growth")),
        in_figure=True,
    )


def _clouds(page: Page, heads: Sequence[ScanHead]) -> Row | None:
    """Two pictures of all eigenvalues, each over its own head's largest: in the plane, and real parts by layer."""
    cells: Counter[tuple[int, int]] = Counter()
    by_layer: Counter[tuple[int, int]] = Counter()
    for head in heads:
        values = np.array(head.eigenvalues, dtype=float).reshape(-1, 2)
        size = float(np.hypot(*values.T).max()) if len(values) else 0.0
        if size == 0:
            continue
        for real, imaginary in values / size:
            weight = 2 if imaginary > 0 else 1
            column = min(39, int((real + 1) * 20))
            by_layer[head.layer, column] += weight
            cells[column, min(19, int(imaginary * 20))] += weight
    if not cells:
        return None

    def edges(c: int) -> dict[str, float]:
        return {"real": c / 20 - 1, "real_end": (c + 1) / 20 - 1}

    plane = [
        {**edges(c), "imaginary": r / 20, "imaginary_end": (r + 1) / 20, "eigenvalues": n}
        for (c, r), n in sorted(cells.items())
    ]
    depth = [{**edges(c), "layer": layer, "eigenvalues": n} for (layer, c), n in sorted(by_layer.items())]
    return Row(
        (
            Chart(
                "All heads together",
                "Eigenvalues of V O in the upper half plane, each divided by its head's largest; the stronger the "
                "colour, the more of them.",
                page.rows("eigenvalue cloud", plane),
                charts.binned("real", "imaginary", "eigenvalues"),
            ),
            Chart(
                "Real parts by layer",
                "The same real parts, layer by layer: weight right of 0 drives tokens apart.",
                page.rows("real parts by layer", depth),
                charts.binned("real", "layer", "eigenvalues", rows=True),
            ),
        )
    )
