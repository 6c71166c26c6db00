"""What an ablation says: without which heads the loss rises, which of them are positional, what a screen misses."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from toposcope.core.statistics import LEVEL, from_error, half_width, interval, plus_minus, told_from_zero
from toposcope.models.ablation.positional import POSITIONAL
from toposcope.models.ablation.replacement import METHODS
from toposcope.models.ablation.result import AblateResult, HeadDamage, LayerDeposit
from toposcope.models.ablation.screen import Screen, ScreenRecall
from toposcope.models.tracing.result import MOSTLY
from toposcope.report.blocks import count

SURE = 0.95  # share of the bootstrap's draws from which on the same head counts as told
NAMED, FIRST = 5, 3  # heads that a sentence names; how many of more than that
MANY, BY_CHANCE = 20, (1 - LEVEL) / 2  # from so many heads on it is said how many without effect would pass
_EXPLAINED = {
    "shuffled": "the same tokens shuffled (order tells nothing)",
    "repeated": "random tokens repeated (only position and copying help)",
}


def summary(result: AblateResult) -> list[str]:
    """The answer first, then what it is measured by; nothing is said to rise whose interval includes 0."""
    ranked = result.ranked()
    told = ["Nothing was measured on the text itself."]
    if ranked:
        told = [*_answer(result, ranked), *_positional(result, ranked), *_worth(result)]
    told += [_elsewhere(result, text.name) for text in result.texts if text.name != "text"]
    deposit, sequences = _deposit(result.layers), len(result.texts[0].base) if result.texts else 0
    told += [] if deposit is None or result.screen is not None else [deposit]
    told += [] if result.screen is None else [_found(result.screen)]
    spread = "; ±: 95% interval over sequences" if sequences > 1 else ""
    told.append(f"Heads are named layer.head, both counted from 0{spread}. {_measured(result)}")
    return told


def _measured(result: AblateResult) -> str:
    """On what, and what it is to remove a head."""
    told = [f"{'Losses' if loss_or_drift(result) == 'loss' else 'Drifts'} are of {result.text}"]
    if result.positional_on:
        told.append(f"shares of position of {result.positional_on}, as trace has them by default")
    return f"{'; '.join(told)}. Removed heads have their {METHODS[result.method]}."


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
    what = f"position alone accounts for more than {MOSTLY:.0%} of"
    most = [each.name for each in known if (each.positional or 0.0) > MOSTLY]
    if len(most) == len(known) and result.provenance.options.get("heads") == POSITIONAL:
        return [f"All {len(ranked)} are positional: {what} their logits' variance."]
    if len(known) == 1:
        its = f"position alone accounts for {known[0].positional:.0%} of its logits' variance"
        return [f"{known[0].name} is {'' if most else 'not '}positional ({its})."]
    names = ", ".join(most[:NAMED]) + (f" and {len(most) - NAMED} more" if len(most) > NAMED else "")
    of = f"Of the {len(known)} heads without which the {loss_or_drift(result)} rises"
    some = f"{len(most) or 'none'} {'are' if len(most) > 1 else 'is'} positional"
    return [f"{of}, {some} ({what} a head's logits' variance){': ' if most else ''}{names}."]


def chosen_by_hand(result: AblateResult) -> bool:
    """Whether somebody named the heads of a model that a screen could go through."""
    given = result.provenance.options.get("heads")
    return result.mode == "exact" and result.predicts != "drift" and given not in (None, "all")


def _answer(result: AblateResult, ranked: Sequence[HeadDamage]) -> list[str]:
    """Without which heads the loss on the text rises, as far as their intervals tell."""
    what, unit, many = loss_or_drift(result), result.unit.partition(" with ")[0], len(ranked) > 1
    if all(half_of(each, "text") is None for each in ranked):
        most = f"Of {len(ranked)} heads, {ranked[0].name} measures highest: without it" if many else ""
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
        words = f"Of {len(ranked)} heads, {first.name} matters most on the text: {rises}"
        among = f"{len(others)} others: " if len(others) > NAMED else ""
        words += f" It also rises without {among}{_listed(others, 'text')}." if others else ""
    else:
        words = f"On the text the {what} rises {_without(harm, ranked, 'text')}."
        if higher:
            verbs = "measures" if len(higher) == 1 else "measure"
            words += f" {_listed(higher, 'text')} {verbs} higher, but may be noise: use more --sequences."
    rest = [each for each in unsure if each not in higher]
    if rest:
        names = ", ".join(each.name for each in rest) if len(rest) <= NAMED else f"{len(rest)} heads"
        words += f" For {names} the change is within noise of 0."
    if len(ranked) >= MANY:
        chance = max(1, round(len(ranked) * BY_CHANCE))
        words += f" (Rises: the 95% interval lies above 0; of {len(ranked)} heads without any effect, about "
        words += f"{chance} would pass by chance.)"
    return [words, *falls]


def _without(harm: Sequence[HeadDamage], ranked: Sequence[HeadDamage], on: str) -> str:
    among = f"{len(harm)} of {len(ranked)} heads: " if len(harm) > NAMED else ""
    return f"without {among}{_listed(harm, on)}"


def _without_any(unsure: Sequence[HeadDamage], ranked: Sequence[HeadDamage], on: str, unit: str = "") -> str:
    """Where no interval lies above 0: the highest that may be above, and with a unit how to learn more."""
    top = unsure[0]
    value = plus_minus(top.damage[on], half_of(top, on)) + (f" {unit}" if unit else "")
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
    told = [each for each in heads if told_from_zero(each.damage[on], half_of(each, on))]
    return (
        sorted(
            (each for each in told if each.damage[on] > 0),
            key=lambda each: (half_of(each, on) or 0) - each.damage[on],
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
            told.append(f"With positions off the {loss_or_drift(result)} on the {text.name} is {off:.3f}.")
            continue
        words = f"For scale: with positions off the {loss_or_drift(result)} on the {text.name} is {off:.3f}, "
        words += f"{worth:.2f} more."
        harm, _, _ = split(result.ranked(text.name), text.name)
        shares = [f"{_percent(each.damage[text.name] / worth)} ({each.name})" for each in harm[:NAMED]]
        told.append(f"{words} The damages, in % of that rise: {', '.join(shares)}." if shares else words)
    return told


def _percent(share: float) -> str:
    """A share that is not 0: '4%', '0.5%', 'under 0.1%'."""
    if share < 0.001:
        return "under 0.1%"
    return f"{100 * share:.1f}%" if share < 0.0095 else f"{100 * share:.0f}%"


def loss_or_drift(result: AblateResult) -> str:
    return "drift" if result.predicts == "drift" else "loss"


def _changes(result: AblateResult, head: HeadDamage) -> str:
    damage, half = head.damage["text"], half_of(head, "text")
    verb = "rises" if damage >= 0 else "falls"
    return f"the {loss_or_drift(result)} {verb} by {plus_minus(abs(damage), half, signed=False)}"


def _elsewhere(result: AblateResult, on: str) -> str:
    """Without which heads the loss on another of the texts rises."""
    ranked, where = result.ranked(on), _EXPLAINED.get(on, on)
    if not ranked:
        return f"On {where}: not measured."
    if all(half_of(each, on) is None for each in ranked):
        highest = "highest " if len(ranked) > 1 else ""
        return f"On {where}: {highest}{_listed(ranked[:1], on)}, one sequence."
    harm, unsure, better = split(ranked, on)
    if harm:
        told = f"clearly rises {_without(harm, ranked, on)}."
    elif unsure:
        told = f"does not clearly rise {_without_any(unsure, ranked, on)}"
    else:
        return f"On {where} the {loss_or_drift(result)} falls without {_listed(better, on)}."
    falls = f" It falls without {_listed(better, on)}." if better else ""
    return f"On {where} the {loss_or_drift(result)} {told}{falls}"


def half_of(head: HeadDamage, on: str) -> float | None:
    """Half of the 95% interval of a damage."""
    return from_error(head.error.get(on), len(head.losses.get(on, ())))


def _listed(heads: Sequence[HeadDamage], on: str) -> str:
    """The first few with their damages, and how many more there are."""
    few = heads if len(heads) <= NAMED else heads[:FIRST]
    names = [f"{each.name} ({plus_minus(each.damage[on], half_of(each, on))})" for each in few]
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
    words += f" (95%: {spread.di.low:.3f} to {spread.di.high:.3f}) on head {head}"
    if spread.same_head < SURE:
        return f"{words}. Which head it is cannot be told: the same one in {spread.same_head:.0%} of the draws."
    return f"{words}, the same one in {spread.same_head:.0%} of the draws."


def of_screen(found: Screen) -> list[str]:
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
            f"Missed of the worst tenth: {miss.rate:.0%} (95%: {miss.low:.0%} to {miss.high:.0%}; {miss.found} "
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
