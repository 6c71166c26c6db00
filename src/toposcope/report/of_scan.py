"""The report of `scan`: where the weights drive the tokens, head by head, with a page for each head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toposcope.report import charts, scan_spectra
from toposcope.report.blocks import (
    Chart,
    Column,
    HeadMap,
    Listing,
    Measure,
    Page,
    Pairs,
    PanelChart,
    Paragraphs,
    Row,
    Summary,
    rounded,
    shown,
)
from toposcope.report.scan_words import meaning, says

LETTERS = {
    "converges": "c", "diverges": "D", "not_convergent": "n", "bounded": "b", "diverges_above": "a",
    "indeterminate": "?", "inactive": ".",
}  # fmt: skip
_MEASURES = (
    Measure("verdict", "Verdict", "category", "What a theorem says of the head acting alone.", words=LETTERS),
    Measure(
        "growth_index",
        "Growth",
        "diverging",
        "Positive share of V O's spectrum (an index): above 0.5 growing directions prevail; random gives 0.5.",
        low=0.0,
        high=1.0,
        harm=True,
    ),
    Measure(
        "peak_offset",
        "Peak offset",
        "logarithmic",
        "Offset at which the head's mean kernel is largest (heuristic); it is not what the head attends to.",
        "integer",
    ),
    Measure(
        "fast_share",
        "Fast pairs",
        "sequential",
        "Share of Q and K in rotary pairs that turn by a radian or more in 8 tokens (heuristic).",
        "percent",
        low=0.0,
    ),
    Measure(
        "contrast",
        "Kernel contrast",
        "sequential",
        "How far its kernel rises at its peak above its mean over near offsets, of 1 in all (heuristic).",
        low=0.0,
    ),
    Measure(
        "peak_share",
        "Peak share",
        "sequential",
        "How much of its amplitude agrees at the kernel's peak (an index); slow pairs agree everywhere.",
        low=0.0,
        high=1.0,
    ),
    Measure(
        "lambda_max_over_n",
        "Contraction",
        "sequential",
        "Norm of the positional kernel over context (an index): 1 leaves logits alone, less contracts them.",
        low=0.0,
    ),
    Measure(
        "margin",
        "Margin",
        "logarithmic",
        "Relative change of V and O that the verdict survives; pale heads are decided by a hair.",
        "percent",
    ),
    Measure(
        "pair_index",
        "Pair",
        "diverging",
        "Do small differences between tokens grow (above 0) or shrink (an index)?",
        harm=True,
    ),
)
_FACTS = (
    Column("verdict", "verdict", "text"),
    Column("rule", "rule", "plain"),
    Column("scope", "scope", "text"),
    Column("exact", "speaks of the model exactly"),
    Column("margin", "margin", "percent"),
    Column("robust", "robust to storage"),
    Column("alpha", "largest Re eig(V O)"),
    Column("omega", "smallest Re eig(V O)"),
    Column("growth_index", "growth index"),
    Column("spread_index", "spread index"),
    Column("pair_index", "pair index"),
    Column("fast_share", "Q and K in fast pairs (heuristic)", "percent"),
    Column("looks", "its kernel", "text"),
    Column("contrast", "peak above the mean", "percent"),
    Column("peak_share", "peak share", "percent"),
    Column("lambda_max_over_n", "kernel norm over context"),
    Column("cond_VO", "condition of V O"),
    Column("certificate", "certificate", "plain"),
    Column("warnings", "remarks", "text"),
)
_COLUMNS = (
    Column("layer", "layer"),
    Column("head", "head"),
    Column("verdict", "verdict", "text"),
    Column("rule", "rule", "plain"),
    Column("margin", "margin", "percent"),
    Column("robust", "robust", "text"),
    Column("alpha", "max Re"),
    Column("omega", "min Re"),
    Column("growth_index", "growth"),
    Column("spread_index", "spread"),
    Column("pair_index", "pair"),
    Column("fast_share", "fast pairs", "percent"),
    Column("looks", "kernel", "text"),
    Column("peak_share", "peak share", "percent"),
)


def build(result: Mapping[str, Any], page: Page) -> None:
    heads, spectra = result["heads"], result["spectra"]
    if not heads:
        page.add("No head to analyse", Paragraphs((_why_none(result),)))
        return
    layers = list(dict.fromkeys(head["layer"] for head in heads))
    page.facts += [
        (f"{len(heads)}", "heads"),
        (f"{len(layers)}", "layers"),
        *((f"{count}", word.replace("_", " ")) for word, count in result["model"]["counts"].items()),
        (f"{spectra['context']:,}", "context"),
    ]
    rows = _rows(heads, spectra["heads"])
    table = page.rows("heads", rows)
    page.add("What to make of it", Summary(tuple(meaning(result))))
    if result.get("estimate"):
        page.add("Estimate for the whole model", _estimate(page, result["estimate"]))
    page.add(
        "Head by head",
        HeadMap(
            "Layers down, heads across",
            "Each cell is a head; choose one to see its spectrum, its kernel and what certifies its verdict.",
            table,
            tuple(measure for measure in _MEASURES if any(row[measure.key] is not None for row in rows)),
            facts=_FACTS,
            charts=_panel_charts(),
        ),
    )
    page.add("Regimes by depth", Row((_regimes(page, heads), _growth(page, heads))), _layer_listing(page, result))
    page.add("Eigenvalues of V O", _clouds(page, heads))
    page.add("Heads that can tell neighbours apart", scan_spectra.ranking(page, rows))
    page.add("Positional kernels", *scan_spectra.kernels(page, rows), scan_spectra.first_layer(page, spectra))
    page.add("Frequency use", scan_spectra.frequencies(rows))
    page.add("Biases and position tables", *scan_spectra.biases(page, spectra))
    for other in result.get("what_if") or []:
        page.add(f"What if: {other['encoding']}", *scan_spectra.what_if(page, spectra, other))
    if result.get("null"):
        page.add("A randomised twin", _twin(result))
    sentence = "Margins are relative changes of V and O that a verdict survives; growth, spread and pair are indices."
    page.add("Every head", Listing("All heads", sentence, table, _COLUMNS))


def _rows(heads: Sequence[Mapping[str, Any]], spectra: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One flat row per head: dynamics and spectra together, lists where the head's own charts need them."""
    by_place = {(row["layer"], row["head"]): row for row in spectra}
    rows = []
    keys = (
        "layer", "head", "verdict", "rule", "scope", "exact", "margin", "robust", "alpha", "omega", "growth_index",
        "spread_index", "pair_index", "cond_VO",
    )  # fmt: skip
    for head in heads:
        seen = by_place.get((head["layer"], head["head"]), {})
        values = head.get("eigenvalues") or []
        certificate = head.get("certificate")
        rows.append(
            {
                **{key: head.get(key) for key in keys},
                "looks": seen.get("looks"),
                "peak_offset": seen.get("peak_offset"),
                "peak_share": seen.get("peak_share"),
                "fast_share": seen.get("fast_share"),
                "contrast": _contrast(seen),
                "lambda_max_over_n": seen.get("lambda_max_over_n"),
                "warnings": ", ".join(head["warnings"]) or None,
                "certificate": None if certificate is None else _certificate(certificate),
                "says": says(head, seen),
                "shown_first": False,
                "eig_re": [pair[0] for pair in values],
                "eig_im": [pair[1] for pair in values],
                "kernel_from": seen.get("kernel_from", 0),
                "kernel": list(seen.get("kernel") or []),
                "query_energy": rounded(list(seen.get("query_energy") or []), 3),
                "key_energy": rounded(list(seen.get("key_energy") or []), 3),
            }
        )
    first = max(range(len(rows)), key=lambda i: _interest(rows[i]))
    rows[first]["shown_first"] = True
    return rows


def _contrast(seen: Mapping[str, Any]) -> float | None:
    """How far the kernel rises at its peak above its mean over the offsets kept."""
    kernel = seen.get("kernel")
    return float(max(kernel) - np.mean(kernel)) if kernel and seen.get("peak_share") is not None else None


def _interest(row: Mapping[str, Any]) -> float:
    return (row["contrast"] or 0.0) + (0.2 if row["rule"] == "T6" else 0.0)


def _certificate(certificate: Mapping[str, Any]) -> str:
    return (
        f"S, N of size {len(certificate['S'])}; w' = {certificate['w_prime']:.3g}, bound {certificate['bound']:.3g}"
    )


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


# ------------------------------------------------------------------ depth
def _regimes(page: Page, heads: Sequence[Mapping[str, Any]]) -> Chart:
    counts = Counter((head["layer"], head["verdict"]) for head in heads)
    words = [word for word in LETTERS if any(head["verdict"] == word for head in heads)]
    table = page.rows(
        "regimes by layer",
        [
            {"layer": layer, "verdict": word.replace("_", " "), "heads": counts[layer, word]}
            for layer in dict.fromkeys(head["layer"] for head in heads)
            for word in words
        ],
    )
    return Chart(
        "Verdicts by layer",
        "How many heads of each layer fall under each verdict.",
        table,
        charts.stacked("layer", "heads", "verdict", [word.replace("_", " ") for word in words], charts.VERDICTS),
    )


def _growth(page: Page, heads: Sequence[Mapping[str, Any]]) -> Chart | None:
    known = [head for head in heads if head["growth_index"] is not None]
    if not known:
        return None
    table = page.rows(
        "growth by layer", [{"layer": h["layer"], "head": h["head"], "growth": h["growth_index"]} for h in known]
    )
    return Chart(
        "Growth index by layer",
        "A dot for each head, the line through layer means; 0.5 (dashed) is what random matrices give.",
        table,
        charts.dots_and_mean("layer", "growth", reference=0.5, domain=(0, 1), tooltip=("layer", "head", "growth")),
    )


def _layer_listing(page: Page, result: Mapping[str, Any]) -> Listing | None:
    rows = result.get("layers") or []
    if not rows:
        return None
    keys = ("layer", "verdict", "rule", "scope", "margin", "alpha", "omega", "growth_index", "rank_U")
    columns = (
        Column("layer", "layer"), Column("verdict", "verdict", "text"), Column("rule", "rule", "plain"),
        Column("scope", "scope", "text"), Column("margin", "margin", "percent"), Column("alpha", "max Re"),
        Column("omega", "min Re"), Column("growth_index", "growth"), Column("rank_U", "rank"),
    )  # fmt: skip
    sentence = "The heads of a layer act together; only the first token (or a consensus) can be judged then."
    return Listing("Layers as wholes", sentence, page.rows("layers as wholes", rows, keys), columns, folded=True)


# ------------------------------------------------------------------ spectra
def _clouds(page: Page, heads: Sequence[Mapping[str, Any]]) -> Row | None:
    """Two pictures of all eigenvalues, each over its own head's largest: in the plane, and real parts by layer."""
    cells: Counter[tuple[int, int]] = Counter()
    by_layer: Counter[tuple[int, int]] = Counter()
    for head in heads:
        values = np.array(head.get("eigenvalues") or [], dtype=float).reshape(-1, 2)
        size = float(np.hypot(*values.T).max()) if len(values) else 0.0
        if size == 0:
            continue
        for real, imaginary in values / size:
            weight = 2 if imaginary > 0 else 1
            column = min(39, int((real + 1) * 20))
            by_layer[head["layer"], column] += weight
            cells[column, min(19, int(imaginary * 20))] += weight
    if not cells:
        return None
    plane = [
        {
            "real": c / 20 - 1,
            "real_end": (c + 1) / 20 - 1,
            "imaginary": r / 20,
            "imaginary_end": (r + 1) / 20,
            "eigenvalues": n,
        }
        for (c, r), n in sorted(cells.items())
    ]
    depth = [
        {"real": c / 20 - 1, "real_end": (c + 1) / 20 - 1, "layer": layer, "eigenvalues": n}
        for (layer, c), n in sorted(by_layer.items())
    ]
    return Row(
        (
            Chart(
                "All heads together",
                "Eigenvalues of V O in the upper half plane, each over its own head's largest; darker is more.",
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


def _estimate(page: Page, found: Mapping[str, Any]) -> Listing:
    """What the drawn layers say about all: an estimate with intervals, not a verdict."""
    rows = [{"verdict": word, **count} for word, count in found["counts"].items()]
    sentence = (
        f"An estimate from {len(found['drawn'])} of {found['layers']} layers, not a verdict: {found['method']}; "
        f"{found['level']:.0%} intervals for the {found['heads']:,} heads. All else here is of the drawn layers."
    )
    columns = (
        Column("verdict", "verdict", "text"), Column("seen", "seen"), Column("estimate", "estimated"),
        Column("low", "from"), Column("high", "to"), Column("at_least", "certainly at least"),
        Column("at_most", "certainly at most"),
    )  # fmt: skip
    return Listing("Heads by verdict", sentence, page.rows("estimate", rows), columns)


def _twin(result: Mapping[str, Any]) -> Pairs:
    twin, own = result["null"], result["model"]
    counts = ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in twin["counts"].items())
    pairs = [
        (name.replace("_", " "), f"{shown(own[name])} here, {shown(twin[name])} in the twin")
        for name in ("growth_index", "spread_index", "pair_index")
    ]
    sentence = "The same spectra in random orientation: what is left of a difference is what training put there."
    return Pairs("Against chance", (("verdicts of the twin", counts), *pairs), sentence)


def _why_none(result: Mapping[str, Any]) -> str:
    why = "; ".join(f"{entry['what']}: {entry['why']}" for entry in result["skipped"][:3])
    return "This model has no self-attention head that could be analysed." + (f" Left out: {why}." if why else "")
