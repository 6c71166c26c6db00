"""The view of `ablate`: what the model loses with each head, and whether a layer hangs on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from toposcope.core.statistics import around, from_error, half_width, interval, told_from_zero
from toposcope.models.ablation.replacement import METHODS
from toposcope.models.ablation.result import AblateResult, HeadDamage, LayerDeposit, PairDamage, TextLoss
from toposcope.models.ablation.screen import Screen, ScreenRecall
from toposcope.report import charts
from toposcope.report.blocks import (
    Chart,
    Column,
    HeadMap,
    Listing,
    Measure,
    Page,
    PanelChart,
    Paragraphs,
    Summary,
    count,
)

WORST = 12  # heads in a picture; the table holds all
SURE = 0.95  # share of the bootstrap's draws from which on the same head counts as told
_TEXTS = {"text": "the text", "shuffled": "the shuffled text", "repeated": "repeated random tokens"}
NAMED = 5  # heads that a sentence names
FEW = 20  # heads from which on a map of letters shows more than the table
_WORDS = {
    "position": "text less shuffled: above 0 the head is worth more where the order of words tells something (a "
    "heuristic).",
    "repeated": "repeated: the second half of random tokens that stand twice, which takes position and copying only.",
}


def view(result: AblateResult, page: Page) -> None:
    """Add the sections of an ablation."""
    texts = [text.name for text in result.texts]
    page.facts.append((str(len(result.heads)), "head removed" if len(result.heads) == 1 else "heads removed in turn"))
    if result.predicts != "drift":  # which is 0 for the whole model
        page.facts += [(f"{fmean(text.base):.3f}", f"{result.unit}, {text.name}") for text in result.texts]
    if not result.heads:
        page.add("Summary", Summary(("No head was measured.",)))
        return
    page.add("Summary", Summary(tuple(_summary(result))))
    rows = [_row(result, each, texts) for each in result.heads]
    worst = max(range(len(rows)), key=lambda i: rows[i].get("damage_text") or 0.0)
    rows[worst]["shown_first"] = True
    table = page.rows("damages", rows)
    alone = len(rows) == 1  # the same numbers as in the summary
    page.add("The heads that matter most", *_heads(page, result, rows, texts), full=alone)
    page.add("Ablation map", _map(result, rows, texts, table), detail=len(rows) < FEW)
    if result.layers:
        page.add("Does a layer hang on one head?", *_deposits(page, result.layers))
    if result.pairs:
        page.add("Pairs", _pairs(page, result.pairs))
    if result.screen is not None:
        page.add("What the screen may have missed", Paragraphs(tuple(_screen(result.screen))))
    if result.notes:
        page.add("Notes", Paragraphs(result.notes, soft=True))


# ------------------------------------------------------------------ words
def _summary(result: AblateResult) -> list[str]:
    """The ablation as a whole, in sentences; each carries its interval, or says that there is none."""
    ranked = result.ranked()
    how = f"Measured on: {result.text}; {METHODS[result.method]}."
    sizes = [said for text in result.texts if (said := _worth(result, text)) is not None]
    if not ranked:
        return ["Nothing was measured on the text itself.", *sizes, how]
    sentences = [_worst(result, ranked)]
    if all(each.half_width is not None for each in ranked) and len(ranked) > 1:
        harm, better = _told(ranked, "text")
        sentences.append(
            f"Damage told from 0: {len(harm) or 'none'} of {len(ranked)} heads{_names(harm)}. Each is judged by "
            "itself at 95 %, so about 1 in 40 idle heads would be among them by chance."
        )
        sentences += _falls(result, better, "text")
    sentences += sizes
    sentences += [_worst_elsewhere(result, text) for text in result.texts if text.name != "text"]
    deposit = _deposit(result.layers)
    return [*sentences, *([] if deposit is None else [deposit]), how]


def _worth(result: AblateResult, text: TextLoss) -> str | None:
    """What position is worth on a text, and how much of that each head costs whose damage can be told from 0."""
    if text.floor is None:
        return None
    base, off = fmean(text.base), fmean(text.floor)
    own = f"{round(base, 3) + 0.0:.3f}"
    words = f"With positions off the {_what(result)} on the {text.name} is {off:.3f} instead of {own}"
    worth, half = interval([after - before for after, before in zip(text.floor, text.base, strict=True)])
    if not (told_from_zero(worth, half) and worth > 0):
        return f"{words} ({result.unit})."
    harm, _ = _told(result.ranked(text.name), text.name)
    words += f": position is worth {worth:.2f} {result.unit.partition(' with ')[0]}"
    if not harm:
        return f"{words}."
    shares = [f"{_percent(each.damage[text.name] / worth)} ({each.name})" for each in harm[:NAMED]]
    return f"{words}. How much a head is needed, as a share of that: {', '.join(shares)}."


def _percent(share: float) -> str:
    """A share that is not 0: '4%', '0.5%', 'under 0.1%'."""
    if share < 0.001:
        return "under 0.1%"
    return f"{100 * share:.1f}%" if share < 0.0095 else f"{100 * share:.0f}%"


def _told(ranked: Sequence[HeadDamage], on: str) -> tuple[list[HeadDamage], list[HeadDamage]]:
    """Heads whose damage on a text can be told from 0: those that harm when they go, and those better removed."""
    told = [each for each in ranked if told_from_zero(each.damage[on], _half(each, on))]
    return [each for each in told if each.damage[on] > 0], [each for each in told if each.damage[on] < 0]


def _falls(result: AblateResult, better: Sequence[HeadDamage], on: str) -> list[str]:
    """The heads without which the loss even falls, the one that does so most first."""
    if not better:
        return []
    most, *others = better[::-1]
    words = f"Without {most.name} the {_what(result)} on {_TEXTS.get(on, on)} even falls, by {_size(most, on)}"
    more = f"; also without {_listed(others)}" if others else ""
    return [f"{words}{more}."]


def _size(head: HeadDamage, on: str) -> str:
    """How large a change is, without its sign, with its interval."""
    half = _half(head, on)
    return f"{abs(head.damage[on]):.3f}" + ("" if half is None else f" ± {half:.3f}")


def _what(result: AblateResult) -> str:
    return "drift" if result.predicts == "drift" else "loss"


def _axis(result: AblateResult) -> str:
    """The title of an axis of damages, with the unit; of a drift without what it is a drift from."""
    return f"damage, {result.unit.partition(' with ')[0]}"


def _worst(result: AblateResult, ranked: Sequence[HeadDamage]) -> str:
    worst = ranked[0]
    damage, half = worst.damage["text"], worst.half_width
    change = f"rises by {damage:.3f}" if damage >= 0 else f"falls by {-damage:.3f}"
    words = f"Without head {worst.name} the {_what(result)} on the text {change}"
    if half is None:
        if len(ranked) > 1:
            words = f"Of {len(ranked)} heads {worst.name} measures worst: without it {words.partition(' the ')[2]}"
        return f"{words} ({result.unit}; one sequence: no interval, so it may be chance)."
    if not told_from_zero(damage, half):
        few = len(worst.losses["text"])
        return (
            f"On the text the {_what(result)} does not measurably rise{_unmoved(worst, 'text', ranked)}; "
            f"four times as many sequences (--sequences {4 * few}) would halve the interval."
        )
    inside = f" (95 %: {_around(damage, half)}; {result.unit})."
    if len(ranked) == 1 or damage < 0:
        return f"{words}{inside}"
    words = f"Of {len(ranked)} heads {worst.name} matters most: without it the {_what(result)} on the text {change}"
    words += inside
    ahead = [a - b for a, b in zip(worst.losses["text"], ranked[1].losses["text"], strict=False)]
    if not told_from_zero(sum(ahead) / max(len(ahead), 1), half_width(ahead)):
        words += f" Whether head {ranked[1].name} matters as much cannot be told."
    return words


def _around(damage: float, half: float) -> str:
    """An interval that leaves 0 out, with as many digits as it takes to see that."""
    near = min(abs(damage - half), abs(damage + half))
    return around(damage, half, next((digits for digits in (3, 4, 5) if round(near, digits)), 6))


def _unmoved(worst: HeadDamage, on: str, ranked: Sequence[HeadDamage]) -> str:
    """Without which head nothing measurable happens, and the largest of these changes."""
    change = f"{round(worst.damage[on], 3) + 0.0:+.3f} ± {_half(worst, on) or 0.0:.3f}"
    if len(ranked) == 1:
        return f" without head {worst.name} ({change})"
    return f", whichever of these heads is removed (most without {worst.name}: {change})"


def _worst_elsewhere(result: AblateResult, text: TextLoss) -> str:
    """The head that matters most on another of the texts, and which heads can be told from 0 there."""
    what, where, on = _what(result), _TEXTS.get(text.name, text.name), text.name
    ranked = result.ranked(on)
    if not ranked:
        return f"On {where} nothing was measured."
    worst = ranked[0]
    damage, half = worst.damage[on], _half(worst, on)
    base = fmean(text.base)
    most = " most" if len(ranked) > 1 else ""
    if half is None:
        change = (
            f"changes{most if damage > 0 else ''} without head {worst.name}: from {base:.2f} to {base + damage:.2f}"
        )
        return f"On {where} the {what} {change} (one sequence: no interval, so it may be chance)."
    harm, better = _told(ranked, on)
    falls = "".join(f" {said}" for said in _falls(result, better, on))
    if not harm:
        if len(ranked) == 1 and better:
            return falls.strip()
        return f"On {where} the {what} does not measurably rise{_unmoved(worst, on, ranked)}.{falls}"
    first = harm[0]
    damage, half = first.damage[on], _half(first, on) or 0.0
    words = f"On {where} the {what} rises{most} without head {first.name}: from {base:.2f} to {base + damage:.2f}"
    words += f" (95 %: by {_around(damage, half)})."
    if len(ranked) > 1:
        words += f" Damage told from 0 there: {len(harm)} of {count(len(ranked), 'head')}{_names(harm)}."
    return f"{words}{falls}"


def _half(head: HeadDamage, on: str) -> float | None:
    """Half of the 95 % interval of a damage."""
    return from_error(head.error.get(on), len(head.losses.get(on, ())))


def _names(heads: Sequence[HeadDamage]) -> str:
    """The first few of them in brackets."""
    if not heads:
        return ""
    return f" ({_listed(heads)})"


def _listed(heads: Sequence[HeadDamage]) -> str:
    more = len(heads) - NAMED
    return f"{', '.join(each.name for each in heads[:NAMED])}{f' and {more} more' if more > 0 else ''}"


def _deposit(layers: Sequence[LayerDeposit]) -> str | None:
    known = [(layer.deposit.di, layer) for layer in layers if layer.deposit.di is not None]
    if not known:
        return None
    index, top = max(known, key=lambda pair: pair[0])
    most = ", more than in any other" if len(known) > 1 else ""
    words = f"Deposit index (how much hangs on a single head) of layer {top.layer}{most}: {index:.3f}"
    head, spread = f"{top.layer}.{top.deposit.head}", top.spread
    if spread is None or spread.di is None or spread.same_head is None:
        return f"{words} on head {head} (one sequence: no interval)."
    words += f" (95 %: {spread.di.low:.3f} to {spread.di.high:.3f}) on head {head}"
    if spread.same_head < SURE:
        return f"{words}. Which head it is cannot be told: the same one in {spread.same_head:.0%} of the draws."
    return f"{words}, the same one in {spread.same_head:.0%} of the draws."


def _screen(found: Screen) -> list[str]:
    rho = "unknown" if found.rho is None else f"{found.rho:.2f}"
    said = [
        f"What the removal of {len(found.estimates)} heads costs was estimated to second order, {len(found.chosen)} "
        f"of them measured, {len(found.sampled)} of the others drawn; rank correlation with the damage: {rho}.",
        _recall(found.recall),
    ]
    if found.miss is not None:
        miss = found.miss
        said.append(
            f"Missed of the true top tenth: {miss.rate:.0%} (95 %: {miss.low:.0%} to {miss.high:.0%}; {miss.found} "
            f"of {miss.sampled} drawn)."
        )
    return said


def _recall(seen: ScreenRecall) -> str:
    return (
        f"Where all heads of {seen.model} were measured as well ({', '.join(seen.texts)}; {seen.sequences} times "
        f"{seen.tokens} tokens each, none of which the screen was made on), it had chosen {seen.found} of the "
        f"{seen.looked_for} heads of the true top tenth: {seen.found / max(seen.looked_for, 1):.0%}, at least "
        f"{seen.least:.0%} (95 %). The others hold {seen.lost:.0%} of the tenth's damage. Other models may differ: "
        "--sample measures some of the heads that were put aside."
    )


# ------------------------------------------------------------------ heads
def _row(result: AblateResult, head: HeadDamage, texts: Sequence[str]) -> dict[str, Any]:
    own, half = head.damage.get("text"), head.half_width
    words = "" if own is None else f"Without it the {_what(result)} on the text changes by {own:+.4f}"
    words += "." if half is None or not words else f" ± {half:.4f} (95 %)."
    if own is not None and half is not None and not told_from_zero(own, half):
        words += " That cannot be told from 0."
    base = next((text.base for text in result.texts if text.name == "text"), ())
    return {
        "name": head.name,
        "layer": head.layer,
        "head": head.head,
        **{f"damage_{name}": head.damage.get(name) for name in texts},
        **{f"half_{name}": _half(head, name) for name in texts},
        "half_width": half,
        "position": head.position,
        "estimate": head.estimate,
        "says": words,
        "shown_first": False,
        "by_sequence": [loss - whole for loss, whole in zip(head.losses.get("text", ()), base, strict=False)],
    }


def _heads(page: Page, result: AblateResult, rows: Sequence[dict[str, Any]], texts: Sequence[str]) -> list[Any]:
    ranked = sorted(rows, key=lambda row: -(row.get("damage_text") or 0.0))
    columns = [Column("name", "head", "plain")]
    for name in texts:
        columns += [Column(f"damage_{name}", name, "+.4f"), Column(f"half_{name}", "±", ".4f")]
    if any(row["position"] is not None for row in rows):
        columns.append(Column("position", "text less shuffled", "+.4f"))
    if result.screen is not None:
        columns.append(Column("estimate", "estimate", "+.4f"))
    rises = f"How much the {_what(result)} rises without each head ({result.unit})"
    words = [f"{rises}; ±: 95 % over sequences."]
    words += [said for key, said in _WORDS.items() if key in texts or any(column.key == key for column in columns)]
    table = page.rows("heads by damage", ranked, [column.key for column in columns])
    listing = Listing(
        "Every head",
        " ".join(words),
        table,
        tuple(columns),
        top=WORST,
        answer=tuple(column.key for column in columns if column.key not in ("position", "estimate")),
        answer_sentence=words[0],
    )
    return [_chart(page, result, ranked), listing]


def _chart(page: Page, result: AblateResult, ranked: Sequence[dict[str, Any]]) -> Chart | None:
    bars = [
        {
            "head": row["name"],
            "damage": row["damage_text"],
            "low": row["damage_text"] - (row["half_width"] or 0.0),
            "high": row["damage_text"] + (row["half_width"] or 0.0),
        }
        for row in ranked[:WORST]
        if row["damage_text"] is not None
    ]
    if not bars:
        return None
    return Chart(
        "Damage of the worst heads",
        f"How much the {_what(result)} on the text rises without each, with Student's 95 % interval over sequences; "
        "the largest of many noisy numbers tends to be too large."
        + ("" if any(row["half_width"] is not None for row in ranked) else " One sequence: no intervals."),
        page.rows("worst heads", bars),
        charts.intervals("head", "damage", "low", "high", order=[bar["head"] for bar in bars], x_title=_axis(result)),
    )


def _map(result: AblateResult, rows: Sequence[dict[str, Any]], texts: Sequence[str], table: str) -> HeadMap:
    measures = [
        Measure(
            f"damage_{name}",
            f"Damage on {name}",
            "diverging",
            f"How much the {_what(result)} on {_TEXTS.get(name, name)} rises without the head ({result.unit}).",
            harm=True,
        )
        for name in texts
        if any(row[f"damage_{name}"] is not None for row in rows)
    ]
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
            *(Column(f"damage_{name}", f"damage on {name}") for name in texts),
            *(Column(f"half_{name}", f"± on {name} (95 %)") for name in texts),
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
    columns = (
        Column("layer", "layer"), Column("name", "worst", "plain"), Column("damage", "damage", "+.4f"),
        Column("index", "deposit", ".3f"), Column("low", "from", ".3f"), Column("high", "to", ".3f"),
        Column("share", "share", ".2f"), Column("gini", "Gini", ".2f"), Column("same_head", "same head", ".0%"),
    )  # fmt: skip
    words = (
        "Deposit index (how much hangs on a single head): 1 if one head carries all that position is worth, 0 if at "
        "least two matter equally or none does alone. share, Gini: of the damages in the layer. same head: how often "
        "resampled sequences have the same worst head."
    )
    if all(row["index"] is None for row in rows):
        words += " It is undefined here: the loss with positions off is unknown, or too near."
        return [Listing("Layer by layer", words, table, columns, top=64)]
    spec: dict[str, Any] = {
        "height": 220,
        "layer": [
            {
                "mark": {"type": "bar", "color": charts.PALETTE[0]},
                "encoding": {
                    "x": {"field": "layer", "type": "ordinal", "axis": {"labelAngle": 0, "labelOverlap": "greedy"}},
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


def _pairs(page: Page, pairs: Sequence[PairDamage]) -> Listing:
    rows = [
        {
            "pair": f"{each.first} {each.second}",
            "damage": each.damage,
            "first": each.alone[0],
            "second": each.alone[1],
            "redundancy": each.redundancy,
            "error": each.error,
        }
        for each in pairs
    ]
    columns = (
        Column("pair", "pair", "plain"), Column("damage", "both", "+.4f"), Column("first", "first", "+.4f"),
        Column("second", "second", "+.4f"), Column("redundancy", "redundancy", "+.4f"), Column("error", "±", ".4f"),
    )  # fmt: skip
    words = (
        "Damage of both, and of each alone. redundancy: both - first - second; above 0 each can stand in for the "
        "other, below 0 they work one after the other."
    )
    return Listing("Two heads removed together", words, page.rows("pairs", rows), columns, top=8)
