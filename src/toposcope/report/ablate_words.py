"""What an ablation says in plain words, computed from its numbers; for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.core.statistics import around, from_error, half_width, told_from_zero
from toposcope.report.blocks import count

SURE = 0.95  # share of the bootstrap's draws from which on the same head counts as told


def half(head: Mapping[str, Any], on: str = "text") -> float | None:
    """Half of the 95 % interval of a head's damage over sequences."""
    return from_error(head["error"].get(on), len(head["scores"].get(on) or ()))


def meaning(found: Mapping[str, Any]) -> list[str]:
    """The ablation as a whole, in sentences; each carries its interval, or says that there is none."""
    ranked = sorted(
        (head for head in found["heads"] if head["damage"].get("text") is not None),
        key=lambda head: -head["damage"]["text"],
    )
    if not ranked:
        return ["Nothing was measured on the text itself."]
    sentences = [_worst(found, ranked)]
    halves = [half(head) for head in ranked]
    if all(each is not None for each in halves) and len(ranked) > 1:
        known = [(head["damage"]["text"], each) for head, each in zip(ranked, halves, strict=True)]
        harmful = sum(value > 0 and told_from_zero(value, each) for value, each in known)
        sentences.append(
            f"The damage of {harmful} of {len(ranked)} heads can be told from 0, each taken alone (95 %); of heads "
            "that do nothing about one in 40 would seem to do harm."
        )
        better = [value for value, each in known if value < 0 and told_from_zero(value, each)]
        seeming = sum(value < 0 for value, _ in known) - len(better)
        if better:
            sentences.append(f"Better removed, by {-min(better):.4f} at most: {count(len(better), 'head')}.")
        if seeming:
            sentences.append(f"Below 0 but not told from 0: {count(seeming, 'head')}.")
    deposit = _deposit(found["layers"])
    return sentences if deposit is None else [*sentences, deposit]


def _worst(found: Mapping[str, Any], ranked: Sequence[Mapping[str, Any]]) -> str:
    worst = ranked[0]
    damage, spread = worst["damage"]["text"], half(worst)
    sequences = len(worst["scores"].get("text") or ())
    what = "drift" if found["score"] == "drift" else "loss"
    sure = told_from_zero(damage, spread)
    verb = "matters most" if sure else "measures worst"
    words = f"Head {_name(worst)} {verb}: without it the {what} on the text rises by {damage:.3f}"
    if spread is None:
        return f"{words} ({found['unit']}; one sequence: no interval, so it may be chance)."
    words += f" (95 %: {around(damage, spread)}; {found['unit']})."
    if not sure:
        return f"{words} These {sequences} sequences cannot tell that from 0."
    if len(ranked) > 1:
        pairs = zip(worst["scores"]["text"], ranked[1]["scores"].get("text") or (), strict=False)
        ahead = [a - b for a, b in pairs]
        if not told_from_zero(sum(ahead) / max(len(ahead), 1), half_width(ahead)):
            words += f" Whether head {_name(ranked[1])} matters as much cannot be told."
    return words


def _deposit(layers: Sequence[Mapping[str, Any]]) -> str | None:
    known = [layer for layer in layers if layer["deposit"]["di"] is not None]
    if not known:
        return None
    top = max(known, key=lambda layer: layer["deposit"]["di"])
    most = ", more than in any other" if len(known) > 1 else ""
    words = f"What hangs on a single head of layer {top['layer']}{most}: deposit index {top['deposit']['di']:.3f}"
    head = f"{top['layer']}.{top['deposit']['head']}"
    spread = top["spread"]
    if spread is None or spread["di"] is None or spread["same_head"] is None:
        return f"{words} on head {head} (one sequence: no interval)."
    words += f" (95 %: {spread['di']['low']:.3f} to {spread['di']['high']:.3f}) on head {head}"
    if spread["same_head"] < SURE:
        return f"{words}. Which head it is cannot be told: the same one in {spread['same_head']:.0%} of the draws."
    return f"{words}, the same one in {spread['same_head']:.0%} of the draws."


def _name(head: Mapping[str, Any]) -> str:
    return f"{head['layer']}.{head['head']}"
