"""How `toposcope scan` looks on a terminal: the map of heads, the verdicts, what to make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]
ORDER = ("converges", "diverges", "not_convergent", "bounded", "diverges_above", "indeterminate", "inactive")
LETTERS = {
    "converges": "c",
    "diverges": "D",
    "not_convergent": "n",
    "bounded": "b",
    "diverges_above": "a",
    "indeterminate": "?",
    "inactive": ".",
}


def print_map(out: Console, heads: Sequence[Row]) -> None:
    """One line per layer, one letter per head: the whole model at a glance."""
    widest = max(5, max(Counter(head["layer"] for head in heads).values()))
    out.print("\nlayer  heads" + " " * (widest - 3) + "mean growth")
    for layer in dict.fromkeys(head["layer"] for head in heads):
        mine = [head for head in heads if head["layer"] == layer]
        letters = "".join(LETTERS[head["verdict"]] for head in mine)
        indices = [head["growth_index"] for head in mine if head["growth_index"] is not None]
        mean = sum(indices) / len(indices) if indices else 0.0
        bar = "#" * round(20 * mean)
        out.print(f"{layer:5d}  {letters:<{widest}}  {mean:.2f} {bar}", soft_wrap=True)
    there = {head["verdict"] for head in heads}
    out.print(f"       {', '.join(f'{LETTERS[word]} {word}' for word in ORDER if word in there)}")
    out.print("       mean growth: positive share of eig(V O), an index; random gives 0.5")


def print_counts(out: Console, body: Mapping[str, Any]) -> None:
    """How many heads fall under each verdict, by which rules; and the twin's, if there is one."""
    from toposcope.dynamics.regime import Verdict

    heads = body["heads"]
    out.print("\n[bold]Verdicts[/bold] (each certified by the rule named; a head acting alone)")
    for word in ORDER:
        mine = [head for head in heads if head["verdict"] == word]
        if mine:
            rules = ", ".join(sorted({head["rule"] for head in mine if head["rule"]}))
            robust, exact = sum(head["robust"] for head in mine), sum(head["exact"] for head in mine)
            out.print(
                f"  {word:15s} {len(mine):4d} of {len(heads)}  {rules:6s} {exact} exact, {robust} robust to storage"
            )
            out.print(f"    {Verdict(word).meaning}")
    twin, own = body.get("null"), body["model"]
    if twin:
        counts = ", ".join(f"{count} {word}" for word, count in twin["counts"].items())
        out.print(f"  randomised twin (same spectra, random orientation): {counts}")
        names = ("growth_index", "spread_index", "pair_index")
        pairs = (f"{name} {own[name]:.3f} against {twin[name]:.3f}" for name in names if twin[name] is not None)
        out.print(f"  {'; '.join(pairs)}")


def print_estimate(out: Console, found: Mapping[str, Any]) -> None:
    """What the drawn layers say about the whole model."""
    out.print(
        f"\n[bold]Estimate for the whole model[/bold] ({len(found['drawn'])} of {found['layers']} layers drawn; "
        f"{found['heads']:,} heads; {found['level']:.0%} intervals)"
    )
    for word in ORDER:
        if word in found["counts"]:
            count = found["counts"][word]
            out.print(
                f"  {word:15s} about {count['estimate']:.0f} ({count['low']:.0f} to {count['high']:.0f}); "
                f"certain: {count['at_least']} to {count['at_most']}"
            )
    out.print(f"  Any other verdict: in at most {found['unseen_verdict_in_at_most_layers']} layers.")
    out.print(f"  {found['method']}.")


def print_extremes(out: Console, heads: Sequence[Row]) -> None:
    """The verdicts with the largest margins."""
    sure = [head for head in heads if head["rule"] in ("T5", "T6") and head["margin"] is not None]
    ranked = sorted(sure, key=lambda head: -(head["margin"] or 0.0))[:5]
    if not ranked:
        return
    out.print("\n[bold]Surest verdicts[/bold] (relative change of V and O that they survive)")
    for head in ranked:
        out.print(
            f"  {_name(head):6s} {head['verdict']:15s} {head['rule']} {head['scope']:12s} {head['margin']:6.2%}  "
            f"Re eig {head['omega']:.2f} to {head['alpha']:.2f}"
        )


def print_meaning(out: Console, body: Mapping[str, Any]) -> None:
    """What to make of it, in sentences."""
    heads, own = body["heads"], body["model"]
    total, counts = len(heads), own["counts"]
    out.print("\n[bold]What to make of it[/bold]")
    share = counts.get("converges", 0) / total
    grows = (counts.get("diverges", 0) + counts.get("not_convergent", 0)) / total
    out.print(f"  {share:.0%} of the heads would, alone and for long, draw what they move to 0;")
    out.print(f"  {grows:.0%} would push at least the first token (or consensus) to infinity.")
    if own["metastable"] and any(head["causal"] for head in heads):
        out.print(f"  {own['metastable']} can freeze on the way (metastable): W sets the speed, V the regime.")
    if own["log_growth"] is not None:
        size = own["log_growth"] / 2.302585
        out.print(f"  Looped, norm-free, attention only: the first token grows by 10^{size:.0f} a pass (heuristic).")
    inexact = sum(not head["exact"] for head in heads)
    if inexact:
        reasons = sorted({warning for head in heads for warning in head["warnings"]})
        out.print(f"  {inexact} heads lie outside the theorems' exact reach ({', '.join(reasons) or 'no rule'}).")


def print_heads(out: Console, heads: Sequence[Row]) -> None:
    """Every head on a line of its own."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("head", "verdict", "rule", "margin", "robust", "alpha", "omega", "growth", "spread", "pair"):
        table.add_column(column, justify="left" if column in ("head", "verdict", "rule") else "right")
    for head in heads:
        table.add_row(
            _name(head),
            head["verdict"] + ("" if head["exact"] else "*"),
            head["rule"] or "-",
            "-" if head["margin"] is None else f"{head['margin']:.2g}",
            "yes" if head["robust"] else "no",
            *(_short(head[key]) for key in ("alpha", "omega", "growth_index", "spread_index", "pair_index")),
        )
    out.print(table)
    out.print("* outside the theorems' exact reach. growth, spread, pair are indices, not verdicts.")


def _name(head: Row) -> str:
    return f"{head['layer']}.{head['head']}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
