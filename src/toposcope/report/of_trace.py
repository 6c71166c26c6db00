"""The report of `trace`: what heads do on a real text, their patterns, shares, and kernels measured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.models.patterns import WORDS as _TITLES
from toposcope.models.patterns import together
from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, HeadMap, Listing, Matrix, Measure, Page, PanelChart, Row, Summary

LETTERS = {"previous": "p", "next": "n", "self": "s", "first": "1", "induction": "i", "local": "l"}
NONE = "none"
_METRICS = {
    "rho": (
        "Contraction",
        "Norm of the logits over that of the same content without position: below 1 position contracts.",
    ),
    "toeplitz": ("Toeplitz", "Share of the logits' energy that depends on the offset alone."),
    "position": ("Position", "Share of the logits' variance due to position alone."),
    "coupling": ("Coupling", "Share of the logits' variance in which content and position act together."),
    "gram_position": ("Position", "Share of the logits due to the positional parts of queries and keys."),
    "distance": ("Distance", "Mean distance, in tokens, at which the head attends."),
    "entropy": ("Entropy", "Mean entropy of its attention, in nats: 0 is one token for each query."),
}
POSITIONAL = 6


def build(result: Mapping[str, Any], page: Page) -> None:
    heads = result["heads"]
    page.facts += [
        (str(len(heads)), "heads"),
        (str(result["sequences"]), "sequences"),
        (f"{result['tokens']:,}", "tokens of each"),
    ]
    if not heads:
        page.add("What to make of it", Summary(("No head was traced.",)))
        return
    rows = [_row(head) for head in heads]
    max(rows, key=_positional)["shown_first"] = True
    table = page.rows("traced heads", rows)
    page.add("What to make of it", Summary(tuple(_meaning(result, rows))))
    words = "All patterns whose threshold a head passes, a letter each; a dot where it passes none."
    measures = [Measure("pattern", "Pattern", "category", words, words=_letters(heads))]
    measures += [
        Measure(key, label, "sequential", sentence, low=0.0)
        for key, (label, sentence) in _METRICS.items()
        if any(row.get(key) is not None for row in rows)
    ]
    measures += [
        Measure(
            f"on_{name}",
            _TITLES[name].capitalize(),
            "sequential",
            f"Share of attention: {_TITLES[name]}.",
            "percent",
            0.0,
            1.0,
        )
        for name in _TITLES
        if any(row.get(f"on_{name}") is not None for row in rows)
    ]
    page.add(
        "Head by head",
        HeadMap(
            "Layers down, heads across",
            f"Medians over {result['sequences']} sequences ({result['text']}). Choose a head to see its page.",
            table,
            tuple(measures),
            facts=_facts(rows),
            charts=(
                PanelChart(
                    "Mean kernel on this text",
                    "How the mean logit depends on the offset t = query - key.",
                    {"kernel": "kernel"},
                    charts.line("offset", "kernel", zero=True, height=170),
                    index="offset",
                ),
                PanelChart(
                    "Where its attention goes",
                    "Share of attention on each pattern, beside what even attention would give.",
                    {"pattern": "pattern_names", "share": "pattern_shares", "even": "pattern_even"},
                    _pattern_bars(),
                ),
            ),
        ),
    )
    page.add("Kernels on this text", _kernels(page, rows))
    page.add("Logits and their Toeplitz part", *(Row(_logits(each)) for each in result.get("logits") or []))
    page.add("By depth", Row(tuple(_depth(page, rows))))
    if result.get("agreement"):
        page.add("Would the weights alone have told?", *_agreement(page, result["agreement"]))
    columns = (
        Column("layer", "layer"),
        Column("head", "head"),
        Column("pattern", "pattern", "text"),
        *(
            Column(key, label.lower())
            for key, (label, _) in _METRICS.items()
            if any(row.get(key) is not None for row in rows)
        ),
    )
    page.add("Every head", Listing("All heads", "Medians over sequences.", table, columns))
    if result.get("gaps"):
        gaps = page.rows("gaps", result["gaps"])
        columns = (Column("metric", "metric", "plain"), Column("heads", "heads"), Column("why", "why", "wrap"))
        page.add("Not measured", Listing("What could not be measured", "And why.", gaps, columns))


def _row(head: Mapping[str, Any]) -> dict[str, Any]:
    def median(part: Mapping[str, Any] | None) -> float | None:
        return None if part is None else part["median"]

    scores = {name: median(part) for name, part in head["scores"].items()}
    known = [name for name in _TITLES if scores.get(name) is not None]
    metrics = {key: median(head["metrics"].get(key)) for key in _METRICS}
    return {
        "layer": head["layer"],
        "head": head["head"],
        "pattern": _pattern(head["names"]),
        "says": _says(head, scores),
        "shown_first": False,
        "peak_offset": head["peak_offset"],
        **metrics,
        **{f"on_{name}": scores[name] for name in known},
        "kernel": list(head["kernel"]),
        "pattern_names": [_TITLES[name] for name in known],
        "pattern_shares": [scores[name] for name in known],
        "pattern_even": [head["uniform"].get(name) for name in known],
    }


def _pattern(names: Sequence[str]) -> str:
    """All patterns of a head in words."""
    return " + ".join(_TITLES.get(name, name) for name in together(names)) or NONE


def _letters(heads: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What stands in a cell for each set of patterns that some head follows: single ones first, in a fixed order."""
    alone = {_TITLES[name]: letter for name, letter in LETTERS.items()}
    several = {together(head["names"]) for head in heads if len(head["names"]) > 1}
    joint = {_pattern(names): "".join(LETTERS.get(name, "?") for name in names) for names in sorted(several)}
    return {**alone, **joint, NONE: "·"}


def _says(head: Mapping[str, Any], scores: Mapping[str, float | None]) -> str:
    named = [
        f"{_TITLES.get(name, name)} ({scores[name] or 0:.0%} of its attention"
        f"{' on repeated random tokens' if name == 'induction' else ''})"
        for name in together(head["names"])
    ]
    words = f"It attends to: {', '.join(named)}." if named else "It follows no named pattern."
    rho = head["metrics"].get("rho")
    if rho is not None:
        side = "contracts" if rho["median"] < 1 else "expands"
        words += (
            f" Position {side} its logits ({rho['median']:.2f}, quartiles {rho['low']:.2f} to {rho['high']:.2f})."
        )
    return words


def _facts(rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    return (
        Column("pattern", "pattern", "text"),
        *(Column(key, label.lower()) for key, (label, _) in _METRICS.items()),
        Column("peak_offset", "kernel's peak at offset"),
        *(Column(f"on_{name}", f"on {title}", "percent") for name, title in _TITLES.items()),
    )


def _meaning(result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    total, patterns = len(rows), result["patterns"]
    sentences = []
    named = [f"{len(heads)} {_TITLES.get(name, name)}" for name, heads in patterns.items() if heads]
    none = sum(row["pattern"] == NONE for row in rows)
    several = sum(len(head["names"]) > 1 for head in result["heads"])
    if named:
        also = f" ({several} of them follow more than one)" if several else ""
        sentences.append(
            f"Heads by what they attend to: {', '.join(named)}{also}; {none} of {total} follow no named pattern."
        )
    else:
        sentences.append(f"None of the {total} heads follows a named pattern on this text.")
    rho = sorted(row["rho"] for row in rows if row["rho"] is not None)
    if rho:
        below = sum(value < 1 for value in rho)
        sentences.append(
            f"Position contracts the logits of {below} of {len(rho)} heads (median norm {rho[len(rho) // 2]:.2f} of "
            "that without position)."
        )
    for key in ("position", "gram_position"):
        ranked = sorted((row for row in rows if row[key] is not None), key=lambda row: -row[key])
        if ranked:
            spread = {(head["layer"], head["head"]): head["metrics"][key] for head in result["heads"]}
            best = ", ".join(
                f"{row['layer']}.{row['head']} ({row[key]:.0%}{_quartiles(spread[row['layer'], row['head']])})"
                for row in ranked[:4]
            )
            sentences.append(f"Position alone has the largest share of the logits in heads {best}.")
            break
    return sentences


def _quartiles(spread: Mapping[str, Any]) -> str:
    """The quartiles over sequences; of one sequence there are none."""
    return f", quartiles {spread['low']:.0%} to {spread['high']:.0%}" if spread.get("count", 0) > 1 else ""


def _kernels(page: Page, rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    best = sorted((row for row in rows if row["kernel"]), key=lambda row: -_positional(row))[:POSITIONAL]
    points = [
        {"head": f"{row['layer']}.{row['head']}", "offset": t, "kernel": value}
        for row in best
        for t, value in enumerate(row["kernel"])
        if value is not None
    ]
    if not points:
        return None
    return Chart(
        "Mean kernels of the most positional heads",
        "Mean logit by offset, for the heads in which position alone has the largest share.",
        page.rows("trace kernels", points),
        charts.line("offset", "kernel", colour="head", zero=True),
    )


def _logits(found: Mapping[str, Any]) -> tuple[Matrix, Matrix]:
    """A head's logits on the first sequence, and beside them what of these depends on the offset alone."""
    name, cell = f"{found['layer']}.{found['head']}", found["cell"]
    starts = tuple(str(number * cell) for number in range(len(found["logits"])))
    cells = f"Each cell is the mean of up to {cell} x {cell} logits. " if cell > 1 else ""
    share = "" if found["share"] is None else f" It holds {found['share']:.0%} of their square."
    seen = sorted(value for line in found["logits"] for value in line if value is not None)
    low, high = (
        seen[len(seen) // 200],
        seen[-1 - len(seen) // 200],
    )  # a first token may lie far off: its colour is cut

    def matrix(key: str, title: str, sentence: str) -> Matrix:
        measure = Measure(key, title, "sequential", "", low=low, high=high)
        return Matrix(
            f"{title} of head {name}",
            sentence,
            "query" if cell == 1 else "queries from",
            "key" if cell == 1 else "keys from",
            starts,
            starts,
            (measure,),
            {key: found[key]},
            square=True,
        )

    return (
        matrix(
            "logits", "Logits", f"Queries down, keys across, on the first {found['tokens']} tokens. {cells}".strip()
        ),
        matrix(
            "toeplitz",
            "Toeplitz part",
            f"Each diagonal's mean, in the same colours: what depends on offset alone.{share}",
        ),
    )


def _positional(row: Mapping[str, Any]) -> float:
    """How much of a head's logits position alone makes, by the best measure there is."""
    known = (row[key] for key in ("position", "gram_position", "toeplitz"))
    return next((float(value) for value in known if value is not None), 0.0)


def _depth(page: Page, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    found = []
    for key in ("rho", "toeplitz", "distance"):
        known = [{"layer": row["layer"], "head": row["head"], key: row[key]} for row in rows if row[key] is not None]
        if known:
            label, sentence = _METRICS[key]
            reference = 1.0 if key == "rho" else None
            spec = charts.dots_and_mean("layer", key, reference=reference, tooltip=("layer", "head", key))
            found.append(Chart(f"{label} by layer", sentence, page.rows(f"{label} by layer", known), spec))
    return found


def _pattern_bars() -> dict[str, Any]:
    names = {"field": "pattern", "type": "nominal", "title": None, "axis": {"labelLimit": 160}}
    return {
        "height": 140,
        "layer": [
            {
                "mark": {"type": "bar", "color": charts.PALETTE[0]},
                "encoding": {
                    "y": names,
                    "x": charts.quantity("share", "share of attention"),
                    "tooltip": [{"field": "pattern"}, {"field": "share"}, {"field": "even"}],
                },
            },
            {
                "mark": {"type": "tick", "color": charts.PALETTE[1], "thickness": 2},
                "encoding": {"y": names, "x": {"field": "even", "type": "quantitative"}},
            },
        ],
    }


def _agreement(page: Page, found: Mapping[str, Any]) -> list[Any]:
    """Rank correlations of indices from the weights with what was traced, and the list of previous-token heads."""
    names = {
        "peak": "peak of the kernel",
        "contraction": "contraction of the kernel",
        "contrast": "kernel at offset 1, with attention on the previous token",
        "fast": "share of fast pairs, with attention on the previous token",
    }
    rows = [
        {"index": words, **{key: found[name][key] for key in ("rho", "p", "count")}}
        for name, words in names.items()
        if found.get(name)
    ]
    listed, traced = set(found.get("listed") or []), set(found.get("traced") or [])
    fast = set(found.get("fast_listed") or [])
    said = (
        f"{len(traced)} heads look at the previous token on the text. The kernel of {len(listed)} peaks at offset 1: "
        f"{len(listed & traced)} of these."
    )
    if fast:
        said += f" Of the {len(fast)} with the largest share of Q and K in fast pairs, {len(fast & traced)}."
    if found.get("fast_auc") is not None:
        said += f" As an order of all heads that share has an AUC of {found['fast_auc']:.2f}."
    columns = (
        Column("index", "index from the weights", "wrap"), Column("rho", "rank correlation"), Column("p", "p"),
        Column("count", "heads"),
    )  # fmt: skip
    return [Listing("Weights against the text", said, page.rows("agreement", rows), columns)]
