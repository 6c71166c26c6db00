"""The view of `ablate`: what the model loses with each head, and whether a layer hangs on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from toposcope.core.statistics import from_error, half_width, interval, plus_minus, told_from_zero
from toposcope.models.ablation.positional import POSITIONAL
from toposcope.models.ablation.replacement import METHODS
from toposcope.models.ablation.result import AblateResult, HeadDamage, LayerDeposit, PairDamage
from toposcope.models.ablation.screen import Screen, ScreenRecall
from toposcope.models.tracing.result import MOSTLY
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
_EXPLAINED = {
    "shuffled": "the same tokens shuffled (order tells nothing)",
    "repeated": "random tokens repeated (only position and copying help)",
}
_WHOLE = {
    "text": "whole model on the text",
    "shuffled": "on its tokens shuffled",
    "repeated": "on random tokens repeated",
}
NAMED, FIRST = 5, 3  # heads that a sentence names; how many of more than that
MANY = 20  # heads of which some would pass by chance
FEW = 20  # heads from which on a map of letters shows more than the table
_WORDS = {
    "position": "text less shuffled: above 0 the head is worth more where the order of words tells something (a "
    "heuristic).",
    "positional": "positional: share of the logits' variance that position alone accounts for.",
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
    page.add("Summary", Summary(tuple(_summary(result))))
    rows = [_row(result, each, texts) for each in result.heads]
    ranked = _in_order(result, rows)
    ranked[0]["shown_first"] = True
    table = page.rows("damages", rows)
    alone = len(rows) == 1  # the same numbers as in the summary
    page.add("The heads that matter most", *_heads(page, result, ranked, texts), full=alone)
    page.add("Ablation map", _map(result, rows, texts, table), full=True, detail=len(rows) < FEW)
    if result.layers:
        asked = result.screen is None and not _chosen_by_hand(result)
        page.add("Does a layer hang on one head?", *_deposits(page, result.layers), full=not asked)
    if result.pairs:
        page.add("Pairs", _pairs(page, result.pairs, len(result.texts[0].base)))
    if result.screen is not None:
        page.add("What the screen may have missed", Paragraphs(tuple(_screen(result.screen))), full=True)
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
    """The rows as tables and pictures show them: heads clearly above 0 first, those clearly better removed last."""
    harm, unsure, better = split(result.ranked(), "text")
    place = {each.name: i for i, each in enumerate([*harm, *unsure, *better[::-1]])}
    return sorted(rows, key=lambda row: place.get(row["name"], len(place)))


# ------------------------------------------------------------------ words
def _summary(result: AblateResult) -> list[str]:
    """The answer first, then what it is measured by; nothing is said to rise whose interval includes 0."""
    ranked = result.ranked()
    told = ["Nothing was measured on the text itself."]
    if ranked:
        told = [*_answer(result, ranked), *_positional(result, ranked), *_worth(result)]
    told += [_elsewhere(result, text.name) for text in result.texts if text.name != "text"]
    deposit, sequences = _deposit(result.layers), len(result.texts[0].base) if result.texts else 0
    told += [] if deposit is None or result.screen is not None else [deposit]
    told += [] if result.screen is None else [_found(result.screen)]
    spread = "; ±: 95 % interval over sequences" if sequences > 1 else ""
    told.append(f"Heads are layer.head, both from 0{spread}. Measured on {result.text}; {METHODS[result.method]}.")
    if ranked and _chosen_by_hand(result):
        told.append("Next, the worst heads of the whole model: --mode screen --only text, without --heads.")
    return told


def _found(screen: Screen) -> str:
    """That a screen may miss heads, and how many it missed where that was tested."""
    seen = screen.recall
    share = f"{seen.found / max(seen.looked_for, 1):.0%}, at least {seen.least:.0%}"
    return (
        f"{len(screen.chosen)} of {len(screen.estimates)} heads were measured, chosen by a screen, which on "
        f"{seen.model} finds {seen.found} of the {seen.looked_for} worst heads ({share})."
    )


def _positional(result: AblateResult, ranked: Sequence[HeadDamage]) -> list[str]:
    """Which of the heads that the model needs are positional."""
    needed, _, _ = split(ranked, "text")
    known = [each for each in needed if each.positional is not None]
    if not known:
        return []
    if len(ranked) == 1:
        return [f"Position alone accounts for {known[0].positional:.0%} of its logits' variance."]
    what = f"position alone accounts for more than {MOSTLY:.0%} of the logits' variance"
    most = [each.name for each in known if (each.positional or 0.0) > MOSTLY]
    if len(most) == len(known) and result.provenance.options.get("heads") == POSITIONAL:
        return [f"All {len(ranked)} are positional: {what}."]
    names = ", ".join(most[:NAMED]) + (f" and {len(most) - NAMED} more" if len(most) > NAMED else "")
    some = f"{len(most)} of these {count(len(known), 'head')}" if most else "none of these heads"
    return [f"Positional ({what}): {some}{': ' if names else ''}{names}."]


def _chosen_by_hand(result: AblateResult) -> bool:
    """Whether somebody named the heads of a model that a screen could go through."""
    given = result.provenance.options.get("heads")
    return result.mode == "exact" and result.predicts != "drift" and given not in (None, "all")


def _answer(result: AblateResult, ranked: Sequence[HeadDamage]) -> list[str]:
    """Without which heads the loss on the text rises, as far as their intervals tell."""
    what, unit, many = _what(result), result.unit.partition(" with ")[0], len(ranked) > 1
    if all(_half(each, "text") is None for each in ranked):
        most = f"Of {len(ranked)} heads {ranked[0].name} measures highest: without it" if many else ""
        words = f"{most or f'Without head {ranked[0].name}'} {_changes(result, ranked[0])} {unit}"
        return [f"{words} (one sequence: no interval, so it may be chance)."]
    harm, unsure, better = split(ranked, "text")
    falls = [f"It falls without {_listed(better, 'text')}."] if better else []
    if not harm and not unsure:
        return [f"On the text the {what} falls without {_listed(better, 'text')}."]
    if not harm:
        return [f"On the text the {what} does not clearly rise {_without_any(unsure, ranked, 'text', unit)}", *falls]
    first, *others = harm
    rises = f"without it {_changes(result, first)} {unit}."
    higher = [each for each in unsure if each.damage["text"] > first.damage["text"]]
    if not many:
        words = f"Without head {first.name} {_changes(result, first)} {unit} on the text."
    elif leads(first, [each for each in ranked if each is not first], "text"):
        words = f"Of {len(ranked)} heads {first.name} matters most on the text: {rises}"
        words += f" It also clearly rises {_without(others, ranked, 'text')}." if others else ""
    else:
        words = f"On the text the {what} clearly rises {_without(harm, ranked, 'text')}."
        if higher:
            verbs = "measures" if len(higher) == 1 else "measure"
            words += f" {_listed(higher, 'text')} {verbs} higher, but may be noise: use more --sequences."
    rest = [each for each in unsure if each not in higher]
    if rest:
        names = ", ".join(each.name for each in rest) if len(rest) <= NAMED else f"{len(rest)} heads"
        words += f" Within noise of 0: {names}."
    if len(ranked) >= MANY:
        words += " Of heads without any effect, 1 in 40 would look so by chance."
    return [words, *falls]


def _without(harm: Sequence[HeadDamage], ranked: Sequence[HeadDamage], on: str) -> str:
    among = f"{len(harm)} of {len(ranked)} heads: " if len(harm) > NAMED else ""
    return f"without {among}{_listed(harm, on)}"


def _without_any(unsure: Sequence[HeadDamage], ranked: Sequence[HeadDamage], on: str, unit: str = "") -> str:
    """Where no interval lies above 0: the highest that may be above, and with a unit how to learn more."""
    top = unsure[0]
    value = plus_minus(top.damage[on], _half(top, on)) + (f" {unit}" if unit else "")
    words = f"whichever of these {len(ranked)} heads is removed (highest {top.name}: {value})."
    if len(ranked) == 1:
        words = f"without head {top.name} ({value})."
    if unit:
        words += f" --sequences {4 * len(top.losses[on])} should at least halve the interval."
    return words


def split(heads: Sequence[HeadDamage], on: str) -> tuple[list[HeadDamage], list[HeadDamage], list[HeadDamage]]:
    """Heads by what their intervals on a text tell: clearly above 0, neither, clearly below 0.

    The first by the lower end of their interval, which noise does not lift; the second by their damage; of the third
    the one first whose removal helps most.
    """
    told = [each for each in heads if told_from_zero(each.damage[on], _half(each, on))]
    return (
        sorted(
            (each for each in told if each.damage[on] > 0), key=lambda each: (_half(each, on) or 0) - each.damage[on]
        ),
        sorted((each for each in heads if each not in told), key=lambda each: -each.damage[on]),
        sorted((each for each in told if each.damage[on] < 0), key=lambda each: each.damage[on]),
    )


def leads(first: HeadDamage, others: Sequence[HeadDamage], on: str) -> bool:
    """Whether a head costs clearly more than each of the others, sequence by sequence."""
    for each in others:
        ahead = [a - b for a, b in zip(first.losses[on], each.losses[on], strict=False)]
        if not ahead or sum(ahead) <= 0 or not told_from_zero(sum(ahead) / len(ahead), half_width(ahead)):
            return False
    return True


def _worth(result: AblateResult) -> list[str]:
    """What position is worth on a text, and beside it what heads cost whose damage is clearly above 0."""
    told = []
    for text in result.texts:
        if text.floor is None:
            continue
        off = fmean(text.floor)
        worth, half = interval([after - before for after, before in zip(text.floor, text.base, strict=True)])
        if not (told_from_zero(worth, half) and worth > 0):
            told.append(f"With positions off the {_what(result)} on the {text.name} is {off:.3f}.")
            continue
        words = f"Position is worth {worth:.2f} on the {text.name} ({_what(result)} with positions off: {off:.3f})."
        harm, _, _ = split(result.ranked(text.name), text.name)
        shares = [f"{each.name} {_percent(each.damage[text.name] / worth)}" for each in harm[:NAMED]]
        told.append(f"{words} In % of that, as a yardstick only: {', '.join(shares)}." if shares else words)
    return told


def _percent(share: float) -> str:
    """A share that is not 0: '4%', '0.5%', 'under 0.1%'."""
    if share < 0.001:
        return "under 0.1%"
    return f"{100 * share:.1f}%" if share < 0.0095 else f"{100 * share:.0f}%"


def _what(result: AblateResult) -> str:
    return "drift" if result.predicts == "drift" else "loss"


def _axis(result: AblateResult) -> str:
    """The title of an axis of damages, with the unit; of a drift without what it is a drift from."""
    return f"damage, {result.unit.partition(' with ')[0]}"


def _changes(result: AblateResult, head: HeadDamage) -> str:
    damage, half = head.damage["text"], _half(head, "text")
    return (
        f"the {_what(result)} {'rises' if damage >= 0 else 'falls'} by {plus_minus(abs(damage), half, signed=False)}"
    )


def _elsewhere(result: AblateResult, on: str) -> str:
    """Without which heads the loss on another of the texts rises."""
    ranked, where = result.ranked(on), _EXPLAINED.get(on, on)
    if not ranked:
        return f"On {where}: not measured."
    if all(_half(each, on) is None for each in ranked):
        highest = "highest " if len(ranked) > 1 else ""
        return f"On {where}: {highest}{_listed(ranked[:1], on)}, one sequence."
    harm, unsure, better = split(ranked, on)
    if harm:
        told = f"clearly rises {_without(harm, ranked, on)}."
    elif unsure:
        told = f"does not clearly rise {_without_any(unsure, ranked, on)}"
    else:
        return f"On {where} the {_what(result)} falls without {_listed(better, on)}."
    falls = f" It falls without {_listed(better, on)}." if better else ""
    return f"On {where} the {_what(result)} {told}{falls}"


def _half(head: HeadDamage, on: str) -> float | None:
    """Half of the 95 % interval of a damage."""
    return from_error(head.error.get(on), len(head.losses.get(on, ())))


def _listed(heads: Sequence[HeadDamage], on: str) -> str:
    """The first few with their damages, and how many more there are."""
    few = heads if len(heads) <= NAMED else heads[:FIRST]
    names = [f"{each.name} ({plus_minus(each.damage[on], _half(each, on))})" for each in few]
    return ", ".join(names) + (f" and {len(heads) - len(few)} more" if len(heads) > len(few) else "")


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
    said = [
        f"The screen estimated {count(len(found.estimates), 'head')} and measured the {len(found.chosen)} expected "
        "to cost most."
    ]
    if found.sampled:
        rho = "" if found.rho is None else f"; rank correlation of estimate and damage: {found.rho:.2f}"
        said[0] = f"{said[0][:-1]}, and {len(found.sampled)} drawn from the others{rho}."
    if found.miss is not None:
        miss = found.miss
        said.append(
            f"Missed of the worst tenth: {miss.rate:.0%} (95 %: {miss.low:.0%} to {miss.high:.0%}; {miss.found} "
            f"of {miss.sampled} drawn)."
        )
    return [*said, _recall(found.recall)]


def _recall(seen: ScreenRecall) -> str:
    return (
        f"It was tested on {seen.model} with all heads measured ({', '.join(seen.texts)}; {seen.sequences} x "
        f"{seen.tokens} tokens, not used to design it): of the worst tenth of the heads, {seen.looked_for}, it chose "
        f"{seen.found}; those it missed account for {seen.lost:.0%} of that tenth's damage. Other models may differ: "
        "--sample N tests it on this one."
    )


# ------------------------------------------------------------------ heads
def _row(result: AblateResult, head: HeadDamage, texts: Sequence[str]) -> dict[str, Any]:
    own, half = head.damage.get("text"), head.half_width
    words = "" if own is None else f"Without it the {_what(result)} on the text changes by {plus_minus(own, half)}."
    if own is not None and half is not None and not told_from_zero(own, half):
        words += " That is within noise of 0."
    base = next((text.base for text in result.texts if text.name == "text"), ())
    return {
        "name": head.name,
        "layer": head.layer,
        "head": head.head,
        **{f"damage_{name}": head.damage.get(name) for name in texts},
        **{f"half_{name}": _half(head, name) for name in texts},
        **{f"told_{name}": _told(head, name) for name in texts},
        "half_width": half,
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
    return _marked(head.damage[on], _half(head, on))


def _marked(value: float, half: float | None) -> str:
    words = plus_minus(value, half)
    return words if half is None or told_from_zero(value, half) else f"({words})"


def _heads(page: Page, result: AblateResult, ranked: Sequence[dict[str, Any]], texts: Sequence[str]) -> list[Any]:
    columns = [Column("name", "head", "plain")]
    columns += [Column(f"told_{name}", name, "interval", f"damage_{name}") for name in texts]
    if any(row["positional"] is not None for row in ranked):
        columns.append(Column("positional", "positional", ".0%"))
    if any(row["position"] is not None for row in ranked):
        columns.append(Column("position", "text less shuffled", "+.3f"))
    if result.screen is not None:
        columns.append(Column("estimate", "estimate", "+.3f"))
    words = [f"How much the {_what(result)} rises without each head ({result.unit})"]
    if any(row["half_width"] is not None for row in ranked):
        words[0] += ", the surest first (by the lower end of the 95 % interval); in brackets: not told from 0"
    words[0] += "."
    known = {*texts, *(column.key for column in columns)}
    words += [said for key, said in _WORDS.items() if key in known]
    keys = [*(column.key for column in columns), *(f"{kind}_{name}" for name in texts for kind in ("damage", "half"))]
    table = page.rows("heads by damage", ranked, keys)
    listing = Listing(
        "Every head",
        " ".join(words),
        table,
        tuple(columns),
        top=WORST,
        answer=tuple(column.key for column in columns if column.key not in ("position", "estimate")),
        answer_sentence=" ".join([words[0], *(_WORDS[key] for key in ("positional",) if key in known)]),
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
            *(Column(f"told_{name}", f"damage on {name} (± 95 %)", "interval") for name in texts),
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
