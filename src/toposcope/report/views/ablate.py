"""The view of `ablate`: what the model loses with each head, and whether a layer hangs on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from toposcope.core.statistics import from_error, plus_minus, told_from_zero
from toposcope.models.ablation import SEQUENCES, TOKENS
from toposcope.models.ablation.replacement import METHODS
from toposcope.models.ablation.result import AblateResult, HeadDamage, LayerDeposit, PairDamage
from toposcope.report import charts
from toposcope.report.blocks import (
    Chart,
    Column,
    Command,
    HeadMap,
    Listing,
    Measure,
    Page,
    PanelChart,
    Paragraphs,
    Summary,
)
from toposcope.report.commands import command
from toposcope.report.views.ablate_words import chosen_by_hand, half_of, loss_or_drift, of_screen, split, summary

FEWEST, MOST = 12, 30  # heads that a terminal and a picture show: all that are told from 0, between these
_TEXTS = {"text": "the text", "shuffled": "the shuffled text", "repeated": "repeated random tokens"}
_WHOLE = {
    "text": "whole model on the text",
    "shuffled": "on its tokens shuffled",
    "repeated": "on random tokens repeated",
}
FEW = 20  # heads from which on a map of letters shows more than the table
_WORDS = {
    "position": "text less shuffled: above 0 the head is worth more where the order of words tells something (a "
    "heuristic).",
    "positional": "Positional: share of its logits' variance that position alone accounts for.",
    "repeated": "repeated: the second half of random tokens that stand twice, which takes position and copying only.",
}


def view(result: AblateResult, page: Page) -> None:
    """Add the sections of an ablation."""
    texts = [text.name for text in result.texts]
    page.facts.append((str(len(result.heads)), _removed(result)))
    if result.predicts != "drift":  # which is 0 for the whole model
        for text in result.texts:
            unit = f"{result.unit}, " if text.name == "text" else ""
            page.facts.append((f"{fmean(text.base):.3f}", f"{unit}{_WHOLE.get(text.name, text.name)}"))
    if not result.heads:
        page.add("Summary", Summary(("No head was measured.",)))
        return
    page.add("Summary", Summary(tuple(summary(result))))
    rows = [_row(result, each, texts) for each in result.heads]
    ranked = _in_order(result, rows)
    ranked[0]["shown_first"] = True
    table = page.rows("damages", rows)
    alone = len(rows) == 1  # the same numbers as in the summary
    page.add("The heads that matter most", *_heads(page, result, ranked, texts), full=alone)
    page.add("What to run next", *_next_steps(result))
    page.add("Ablation map", _map(result, rows, texts, table), full=True, detail=len(rows) < FEW)
    if result.layers:
        asked = result.screen is None and not chosen_by_hand(result)
        page.add("Does a layer hang on one head?", *_deposits(page, result.layers), full=not asked)
    if result.pairs:
        page.add("Pairs", _pairs(page, result.pairs, len(result.texts[0].base)))
    if result.screen is not None:
        page.add("What the screen may have missed", Paragraphs(tuple(of_screen(result.screen))), full=True)
    if result.notes:
        page.add("Notes", Paragraphs(result.notes, soft=True))


def _removed(result: AblateResult) -> str:
    """How many heads those are, and where they come from when a screen chose them."""
    words = "head removed" if len(result.heads) == 1 else "heads removed in turn"
    if result.screen is None:
        return words
    screen, named = result.screen, [each.name for each in result.heads]
    paired = {name for pair in result.pairs for name in (pair.first, pair.second)}
    chosen = sum(name in screen.chosen for name in named)
    drawn = sum(name in screen.sampled for name in named)
    more = [name for name in named if name not in screen.chosen and name not in screen.sampled]
    pairs = sum(name in paired for name in more)
    parts = [
        f"{number} {why}"
        for number, why in (
            (chosen, "chosen by the screen"), (drawn, "drawn"), (pairs, "for pairs"),
            (len(more) - pairs, "from an earlier run"),
        )
        if number
    ]  # fmt: skip
    return f"{words}: {', '.join(parts)}" if len(parts) > 1 else f"{words}, chosen by the screen"


def _in_order(result: AblateResult, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as tables and pictures show them: heads clearly above 0, those clearly below, those within noise."""
    harm, unsure, better = split(result.ranked(), "text")
    place = {each.name: i for i, each in enumerate([*harm, *better, *unsure])}
    return sorted(rows, key=lambda row: place.get(row["name"], len(place)))


def _shown(ranked: Sequence[dict[str, Any]]) -> tuple[int, str]:
    """How many of them a terminal and a picture show, and what is to be said of the others."""
    sure = sum(row["sure"] for row in ranked)
    top = max(FEWEST, min(sure, MOST))
    if all(row["half_width"] is None for row in ranked):
        return top, ""
    return top, "within noise of 0" if sure <= top else f"{sure - top} of them clearly above or below 0"


def _next_steps(result: AblateResult) -> list[Command]:
    """What does the worst head do; which are the worst of a model of which only some were removed?"""
    if result.predicts == "drift" or not result.ranked():
        return []
    options = result.provenance.options
    worst = split(result.ranked(), "text")[0]
    same = command(result, "ablate", ["text", "begin", "lines", "seed"])[3:]
    steps = []
    if worst:
        line = " ".join([*command(result, "trace"), *same, "--heads", worst[0].name])
        steps.append(Command(f"What does {worst[0].name} do?", line))
    if chosen_by_hand(result):
        given = [name for name, usual in (("tokens", TOKENS), ("sequences", SEQUENCES)) if options.get(name) != usual]
        words = command(result, "ablate", ["text", *given, "begin", "lines", "seed"])
        line = " ".join([*words, "--mode screen --only text"])
        steps.append(Command("Which heads does the whole model need most?", line))
    return steps


# ------------------------------------------------------------------ heads
def _row(result: AblateResult, head: HeadDamage, texts: Sequence[str]) -> dict[str, Any]:
    own, half = head.damage.get("text"), head.half_width
    words = (
        ""
        if own is None
        else f"Without it the {loss_or_drift(result)} on the text changes by {plus_minus(own, half)}."
    )
    if own is not None and half is not None and not told_from_zero(own, half):
        words += " That is within noise of 0."
    base = next((text.base for text in result.texts if text.name == "text"), ())
    return {
        "name": head.name,
        "layer": head.layer,
        "head": head.head,
        **{f"damage_{name}": head.damage.get(name) for name in texts},
        **{f"half_{name}": half_of(head, name) for name in texts},
        **{f"told_{name}": _told(head, name) for name in texts},
        "half_width": half,
        "sure": own is not None and told_from_zero(own, half),
        "position": head.position,
        "positional": head.positional,
        "estimate": head.estimate,
        "says": words,
        "shown_first": False,
        "by_sequence": [loss - whole for loss, whole in zip(head.losses.get("text", ()), base, strict=False)],
    }


def _told(head: HeadDamage, on: str) -> str | None:
    """A damage with its interval, in brackets where that includes 0."""
    if on not in head.damage:
        return None
    return _marked(head.damage[on], half_of(head, on))


def _marked(value: float, half: float | None) -> str:
    words = plus_minus(value, half)
    return words if half is None or told_from_zero(value, half) else f"({words})"


def _heads(page: Page, result: AblateResult, ranked: Sequence[dict[str, Any]], texts: Sequence[str]) -> list[Any]:
    headings = {"text": "damage"} if texts == ["text"] else {"text": "on text"}
    columns = [Column("name", "head", "plain")]
    columns += [Column(f"told_{name}", headings.get(name, name), "interval", f"damage_{name}") for name in texts]
    if any(row["positional"] is not None for row in ranked):
        columns.append(Column("positional", "positional", ".0%"))
    if any(row["position"] is not None for row in ranked):
        columns.append(Column("position", "text less shuffled", "+.3f"))
    if result.screen is not None:
        columns.append(Column("estimate", "estimate", "+.3f"))
    top, others = _shown(ranked)
    words = [f"Damage: how much the {loss_or_drift(result)} rises without the head ({result.unit})."]
    if any(row["half_width"] is not None for row in ranked):
        words[0] += " In brackets: within noise of 0, by the 95% interval. Sorted by the lower end of the interval."
    known = {*texts, *(column.key for column in columns)}
    words += [said for key, said in _WORDS.items() if key in known]
    keys = [*(column.key for column in columns), *(f"{kind}_{name}" for name in texts for kind in ("damage", "half"))]
    table = page.rows("heads by damage", ranked, keys)
    listing = Listing(
        "Every head",
        " ".join(words),
        table,
        tuple(columns),
        top=top,
        others=others,
        answer=tuple(column.key for column in columns if column.key not in ("position", "estimate")),
        answer_sentence=" ".join([words[0], *(_WORDS[key] for key in ("positional",) if key in known)]),
    )
    return [_chart(page, result, ranked[:top], (len(ranked) - top, others)), listing]


def _axis(result: AblateResult) -> str:
    """The title of an axis of damages, with the unit; of a drift without what it is a drift from."""
    return f"damage, {result.unit.partition(' with ')[0]}"


def _chart(page: Page, result: AblateResult, ranked: Sequence[dict[str, Any]], left: tuple[int, str]) -> Chart | None:
    """The damages of some heads; `left`: how many heads are not drawn, and what is said of these."""
    bars = [
        {
            "head": row["name"],
            "damage": row["damage_text"],
            "low": row["damage_text"] - (row["half_width"] or 0.0),
            "high": row["damage_text"] + (row["half_width"] or 0.0),
        }
        for row in ranked
        if row["damage_text"] is not None
    ]
    if not bars:
        return None
    words = f"How much the {loss_or_drift(result)} on the text rises without each head"
    if any(row["half_width"] is not None for row in ranked):
        words += ", with Student's 95% interval over sequences. Heads clearly above 0 first, by its lower end: the "
        words += "largest of many noisy numbers tends to be too large."
    else:
        words += " (one sequence: no intervals)."
    more, others = left
    if more > 0:
        words += f" {more} more heads are not drawn{': ' if others else ''}{others}."
    return Chart(
        "Damage by head",
        words,
        page.rows("worst heads", bars),
        charts.intervals("head", "damage", "low", "high", order=[bar["head"] for bar in bars], x_title=_axis(result)),
    )


def _map(result: AblateResult, rows: Sequence[dict[str, Any]], texts: Sequence[str], table: str) -> HeadMap:
    measures = [
        Measure(
            f"damage_{name}",
            f"Damage on {name}",
            "diverging",
            f"How much the {loss_or_drift(result)} on {_TEXTS.get(name, name)} rises without the head "
            f"({result.unit}).",
            harm=True,
        )
        for name in texts
        if any(row[f"damage_{name}"] is not None for row in rows)
    ]
    if any(row["positional"] is not None for row in rows):
        said = "Share of the logits' variance that position alone accounts for."
        measures.append(Measure("positional", "Positional", "sequential", said, "percent", 0.0, 1.0))
    if any(row["position"] is not None for row in rows):
        measures.append(Measure("position", "Text less shuffled", "diverging", _WORDS["position"].partition(": ")[2]))
    bars = {
        "height": 150,
        "mark": {"type": "bar", "color": charts.PALETTE[0]},
        "encoding": {
            "x": {"field": "sequence", "type": "ordinal", "axis": {"labelAngle": 0}},
            "y": charts.quantity("damage", _axis(result)),
        },
    }
    return HeadMap(
        "What each head is worth",
        f"Layers down, heads across; each was removed alone ({METHODS[result.method]}). Choose one for its numbers.",
        table,
        tuple(measures),
        facts=(
            *(Column(f"told_{name}", f"damage on {name} (± 95%)", "interval") for name in texts),
            Column("positional", "positional", "percent"),
            Column("position", "text less shuffled"),
        ),
        charts=(
            PanelChart(
                "Sequence by sequence",
                "Damage on each sequence of the text.",
                {"damage": "by_sequence"},
                bars,
                index="sequence",
            ),
        ),
        in_figure=True,
    )


# ------------------------------------------------------------------ layers and pairs
def _deposits(page: Page, layers: Sequence[LayerDeposit]) -> list[Any]:
    rows = []
    for layer in layers:
        spread, deposit = layer.spread, layer.deposit
        inside = None if spread is None else spread.di
        rows.append(
            {
                "layer": layer.layer,
                "name": None if deposit.head is None else f"{layer.layer}.{deposit.head}",
                "damage": deposit.d_max,
                "index": deposit.di,
                "low": None if inside is None else inside.low,
                "high": None if inside is None else inside.high,
                "share": deposit.share,
                "gini": deposit.gini,
                "same_head": None if spread is None else spread.same_head,
            }
        )
    table = page.rows("deposits", rows)
    named = (
        Column("layer", "layer"), Column("name", "worst", "plain"), Column("damage", "damage", "+.3f"),
        Column("index", "deposit", ".3f"), Column("low", "from", ".3f"), Column("high", "to", ".3f"),
        Column("share", "share", ".2f"), Column("gini", "Gini", ".2f"), Column("same_head", "same head", ".0%"),
    )  # fmt: skip
    columns = tuple(column for column in named if any(row[column.key] is not None for row in rows))
    known = {column.key for column in columns}
    words = (
        "Deposit index (how much hangs on a single head): 1 if one head carries all that position is worth, 0 if at "
        "least two matter equally or none does alone."
    )
    if "index" not in known:
        words += " It is undefined here: the loss with positions off was not measured, or is not clearly higher."
    words += " share, Gini: of the damages in the layer." if "share" in known else ""
    words += " same head: how often resampled sequences have the same worst head." if "same_head" in known else ""
    if "index" not in known:
        return [Listing("Layer by layer", words, table, columns, top=64)]
    spec: dict[str, Any] = {
        "height": 220,
        "layer": [
            {
                "mark": {"type": "bar", "color": charts.PALETTE[0]},
                "encoding": {
                    "x": {"field": "layer", "type": "ordinal", "axis": {"labelAngle": 0, "labelOverlap": "parity"}},
                    "y": charts.quantity("index", "deposit index"),
                    "tooltip": [{"field": name} for name in ("layer", "name", "index", "low", "high")],
                },
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "color": charts.INK},
                "encoding": {
                    "x": {"field": "layer", "type": "ordinal"},
                    "y": charts.quantity("low", "deposit index"),
                    "y2": {"field": "high"},
                },
            },
        ],
    }
    said = (
        "How far the worst head of a layer stands above the next, relative to what position is worth. The index is "
        "never negative, so noise gives more than 0 too: read it with the share of draws that agree."
    )
    return [
        Chart("Deposit index by layer", said, table, spec, in_figure=True),
        Listing("Layer by layer", words, table, columns, top=64),
    ]


def _clear_first(row: dict[str, Any]) -> tuple[bool, float]:
    """Pairs whose redundancy is clearly above 0 by the lower end of its interval, then the others by its size."""
    lower = row["redundancy"] - (row["half"] or 0.0)
    clear = row["half"] is not None and lower > 0
    return not clear, -(lower if clear else row["redundancy"])


def _pairs(page: Page, pairs: Sequence[PairDamage], sequences: int) -> Listing:
    rows = [
        {
            "pair": f"{each.first} {each.second}",
            "damage": each.damage,
            "first": each.alone[0],
            "second": each.alone[1],
            "redundancy": each.redundancy,
            "half": from_error(each.error, sequences),
            "told": _marked(each.redundancy, from_error(each.error, sequences)),
        }
        for each in pairs
    ]
    rows.sort(key=_clear_first)
    columns = (
        Column("pair", "pair", "plain"), Column("damage", "both", "+.3f"), Column("first", "first", "+.3f"),
        Column("second", "second", "+.3f"), Column("told", "redundancy", "interval", "redundancy"),
    )  # fmt: skip
    words = (
        "Damage of both, and of each alone. redundancy: both - first - second; above 0 each can stand in for the "
        "other, below 0 they work one after the other; in brackets: within noise of 0."
    )
    return Listing("Two heads removed together", words, page.rows("pairs", rows), columns, top=8)
