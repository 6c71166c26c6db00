"""The view of `compare`: how far each head moved between two checkpoints, and whose verdict did not survive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toposcope.report import charts
from toposcope.report.blocks import Chart, Column, HeadMap, Listing, Measure, Page, Row, Summary
from toposcope.report.verdicts import word
from toposcope.scanning.compare import CompareResult, HeadChange

LETTERS = {"same": "·", "moved": "X"}
LONGEST_NAME = 36  # of a longer path the last part stands in the title
EXTRA = 6  # numbers of stored results that the map can be coloured by
_MEASURES = (
    Measure("change_W", "Change of Q'K", "sequential", "|A - B| / |A| of scale QᵀK, exact.", "percent", 0.0),
    Measure("change_V", "Change of O V", "sequential", "|A - B| / |A| of O V, exact.", "percent", 0.0),
    Measure(
        "change_kernel", "Change of kernel", "sequential",
        "Relative distance of the mean positional kernels (heuristic).", "percent", 0.0,
    ),
    Measure("kept", "Verdict", "category", "Whether the theorem's verdict is the same for both.", words=LETTERS),
    Measure(
        "growth_change", "Growth", "diverging",
        "Growth in B less that in A: above 0 more of its spectrum grows.", harm=True,
    ),
)  # fmt: skip
_COLUMNS = (
    Column("layer", "layer"),
    Column("head", "head"),
    Column("change_W", "change of Q'K", "percent"),
    Column("change_V", "change of O V", "percent"),
    Column("change_kernel", "change of kernel", "percent"),
    Column("cosine_W", "cosine Q'K"),
    Column("cosine_V", "cosine O V"),
    Column("verdict_a", "verdict in A", "text"),
    Column("verdict_b", "verdict in B", "text"),
    Column("growth_a", "growth in A"),
    Column("growth_b", "growth in B"),
    Column("peak_a", "peak in A"),
    Column("peak_b", "peak in B"),
)
_MOST = (
    Column("name", "head", "plain"),
    Column("change_W", "Q'K", "percent"),
    Column("change_V", "O V", "percent"),
    Column("change_kernel", "kernel", "percent"),
    Column("growth_a", "growth A", ".2f"),
    Column("growth_b", "B", ".2f"),
    Column("verdict", "verdict", "text"),
)
_PARTS = {"change_W": "Q'K", "change_V": "O V", "change_kernel": "kernel"}


def view(result: CompareResult, page: Page) -> None:
    """Add the sections of a comparison."""
    names = [Path(name).name if len(name) > LONGEST_NAME else name for name in (result.a, result.b)]
    if page.title or names[0] == names[1] != result.a:
        page.line = f"A: {result.a}; B: {result.b}"
    page.title = page.title or f"Comparison of {' and '.join(names)}"
    page.facts += [
        (str(len(result.heads)), "heads"),
        (str(result.moved), "verdicts moved"),
    ]
    if any(head.peak_a is not None for head in result.heads):
        page.facts.append((str(result.looks_elsewhere), "kernels peak elsewhere"))
    page.add("Summary", Summary(tuple(summary(result))))
    if result.encodings:
        page.add("Encodings and contexts", _encodings(page, result))
    if not result.heads:
        return
    rows = _rows(result)
    table = page.rows("changes", rows)
    columns = _present(_COLUMNS, rows)
    page.add("By layer", *_by_layer(page, result, rows))
    page.add("Heads by change", _most(page, result))
    if result.of != "models":
        page.add("Mean absolute change", _means(page, result))
    page.add(
        "Head by head",
        HeadMap(
            "What changed",
            "Layers down, heads across; choose a head to see its numbers.",
            table,
            _measures(result, rows),
            facts=columns[2:],
            in_figure=True,
        ),
        detail=not (
            any(head.size or head.moved for head in result.heads) or any(result.mean_absolute_change.values())
        ),
    )
    listing = Listing("All heads", "Changes are relative to A.", table, columns, brief=("layer", "head", *_PARTS))
    page.add("Every head", listing, detail=True)


def _rows(result: CompareResult) -> list[dict[str, Any]]:
    top = result.ranked()[0]
    keys = [column.key for column in _COLUMNS]
    return [
        {
            **{key: getattr(head, key) for key in keys},
            "kept": None if head.verdict_a is None else "moved" if head.moved else "same",
            "growth_change": _less(head.growth_b, head.growth_a),
            **{f"{name}_change": number.change for name, number in head.numbers.items()},
            "says": _says(head),
            "shown_first": head is top,
        }
        for head in result.heads
    ]


def _present(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    return tuple(column for column in columns if any(row.get(column.key) is not None for row in rows))


def _measures(result: CompareResult, rows: Sequence[Mapping[str, Any]]) -> tuple[Measure, ...]:
    measures = [each for each in _MEASURES if any(row.get(each.key) is not None for row in rows)]
    if result.of == "models":
        return tuple(measures)
    taken = {each.key for each in measures}
    extra = [name for name in result.mean_absolute_change if f"{name}_change" not in taken][:EXTRA]
    spoken = {name: name.replace("_", " ") for name in extra}
    measures += [
        Measure(f"{name}_change", spoken[name], "diverging", f"{spoken[name]} in B less that in A.") for name in extra
    ]
    return tuple(measures)


def _less(b: float | None, a: float | None) -> float | None:
    return None if a is None or b is None else b - a


# ------------------------------------------------------------------ words
def summary(result: CompareResult) -> list[str]:
    """The comparison as a whole, in sentences."""
    heads = result.heads
    if not heads:
        return [*_encoding_words(result), "There is no head to compare."]
    sentences = _encoding_words(result)
    for key, name in (("change_W", "Q'K"), ("change_V", "O V")):
        known = sorted(value for head in heads if (value := getattr(head, key)) is not None)
        if known and known[-1] == 0:
            sentences.append(f"{name} is the same in every head.")
        elif known:
            sentences.append(
                f"{name} moved by {known[len(known) // 2]:.1%} of its size in the median head, "
                f"{known[-1]:.1%} at most."
            )
    top = result.ranked()[0]
    if top.size > 0:
        sentences.append(f"Head {top.layer}.{top.head} changed most.")
    sentences += _depth_words(result)
    verdicts = Counter((head.verdict_a, head.verdict_b) for head in heads if head.moved)
    if verdicts:
        words = ", ".join(
            f"{count} from {word(str(a))} to {word(str(b))}" for (a, b), count in verdicts.most_common(4)
        )
        sentences.append(f"{result.moved} of {len(heads)} heads have another verdict: {words}.")
    elif heads[0].verdict_a is not None:
        sentences.append("Every head keeps its verdict.")
    if any(head.peak_a is not None for head in heads):
        sentences.append(f"{result.looks_elsewhere} of {len(heads)} heads have their kernel's peak elsewhere.")
    if result.table_change is not None:
        sentences.append(f"The position vectors moved by {result.table_change:.1%} of their size.")
    return sentences


def _encoding_words(result: CompareResult) -> list[str]:
    """First of all: whether encodings and contexts are the same, or what differs, setting by setting."""
    every = {row.layer for row in result.layers}
    parts = []
    for each in result.encodings:
        some = set(each.layers)
        where = f" (layers {', '.join(map(str, sorted(some)))})" if some and some != every else ""
        parts.append(f"{each.what.replace('_', ' ')} {each.a or 'not set'} -> {each.b or 'not set'}{where}")
    if parts:
        return [f"Positional encodings or contexts differ (A -> B): {'; '.join(parts)}."]
    same = "" if result.context_a is None else f", and both claim a context of {result.context_a:,} tokens"
    return [f"The positional encodings are the same{same}."]


def _depth_words(result: CompareResult) -> list[str]:
    sizes = [
        max(row.change_W, row.change_V)
        for row in result.layers
        if row.change_W is not None and row.change_V is not None
    ]
    third = len(sizes) // 3
    if len(sizes) <= 3:
        return []
    early, late = sum(sizes[:third]) / third, sum(sizes[-third:]) / third
    if max(early, late) == 0:
        return []
    which = "later" if late > 1.2 * early else "earlier" if early > 1.2 * late else None
    if which is None:
        return [
            f"Early and late layers changed by similar amounts ({early:.1%} and {late:.1%}, first and last third)."
        ]
    return [f"The {which} layers changed more ({max(early, late):.1%} against {min(early, late):.1%})."]


def _says(head: HeadChange) -> str:
    words = []
    if head.change_W is not None:
        words.append(f"Q'K moved by {head.change_W:.1%} of its size")
    if head.change_V is not None:
        words.append(f"O V by {head.change_V:.1%}")
    first = ", ".join(words) + "." if words else ""
    if head.verdict_a is None:
        return first
    kept = f"The verdict stays: {word(head.verdict_a)}."
    moved = f"The verdict goes from {word(head.verdict_a)} to {word(str(head.verdict_b))}."
    return f"{first} {moved if head.moved else kept}".strip()


# ------------------------------------------------------------------ tables and pictures
def _encodings(page: Page, result: CompareResult) -> Listing:
    rows = [{**vars(each), "layers": ", ".join(map(str, each.layers)) or "all"} for each in result.encodings]
    columns = (
        Column("what", "setting", "text"), Column("a", "in A", "wrap"), Column("b", "in B", "wrap"),
        Column("layers", "layers", "wrap"),
    )  # fmt: skip
    words = "What differs in encodings and contexts; all else on this page comes from weights and these."
    return Listing("Encodings or contexts differ", words, page.rows("encodings", rows), columns)


def _most(page: Page, result: CompareResult) -> Listing | None:
    """The heads that changed most, or whose verdict did."""
    changed = [head for head in result.ranked() if head.size > 0 or head.moved or head.change_kernel]
    rows = [
        {
            **vars(head),
            "name": f"{head.layer}.{head.head}",
            "verdict": f"{head.verdict_a} -> {head.verdict_b}" if head.moved else head.verdict_b,
        }
        for head in changed
    ]
    if not rows:
        return None
    columns = _present(_MOST, rows)
    table = page.rows("most changed", rows[:24], [column.key for column in columns])
    return Listing("Most changed heads", "Changes are relative to A, most first.", table, columns)


def _means(page: Page, result: CompareResult) -> Listing:
    rows = [{"what": name, "mean": value} for name, value in result.mean_absolute_change.items()]
    columns = (Column("what", "what", "plain"), Column("mean", "mean |B - A|", ".4g"))
    words = f"Over {len(result.heads)} heads of two results of '{result.of}'."
    return Listing("Mean absolute change", words, page.rows("mean absolute change", rows), columns, top=40)


def _by_layer(page: Page, result: CompareResult, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    if not result.layers:
        return []
    depth = [
        {"layer": row.layer, "of": name, "change": getattr(row, key)}
        for key, name in _PARTS.items()
        for row in result.layers
        if getattr(row, key) is not None
    ]
    spread = [
        {"layer": row["layer"], "head": row["head"], "change": row["change_W"]}
        for row in rows
        if row["change_W"] is not None
    ]
    columns = (
        Column("layer", "layer"), *(Column(key, name, "percent") for key, name in _PARTS.items()),
        Column("moved", "verdicts moved"), Column("heads", "heads"),
    )  # fmt: skip
    columns = _present(columns, [vars(row) for row in result.layers])
    words = "Relative change |A - B| / |A|, mean over a layer's heads."
    table = page.rows("change by layer", [vars(row) for row in result.layers])
    return [
        Row(
            (
                Chart(
                    "Mean change by layer",
                    words,
                    page.rows("mean change by layer", depth),
                    charts.line("layer", "change", colour="of", points=True),
                    in_figure=True,
                ),
                Chart(
                    "Change of Q'K, head by head",
                    "A dot for each head, the line through layer means.",
                    page.rows("spread by layer", spread),
                    charts.dots_and_mean("layer", "change", tooltip=("layer", "head", "change")),
                ),
            )
        ),
        Listing("The same in numbers", words, table, columns, folded=True, top=48),
    ]
