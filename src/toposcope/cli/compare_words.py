"""How `toposcope compare` looks on a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toposcope.cli.common import safe
from toposcope.report.compare_words import encodings, meaning, ranked

if TYPE_CHECKING:
    from rich.console import Console

MOST = 12


def print_comparison(out: Console, result: Mapping[str, Any], *, every: bool = False) -> None:
    """What changed by layer, the most changed heads, verdicts that moved, and what to make of it."""
    out.print(f"[bold]{safe(result['a'])}[/bold] and [bold]{safe(result['b'])}[/bold]", soft_wrap=True)
    heads = result["heads"]
    _say(out, encodings(result), "")
    if "of" not in result:  # two models; otherwise two stored results
        _print_layers(out, result["layers"])
        _print_heads(out, heads if every else ranked(heads)[:MOST], every=every, total=len(heads))
    else:
        _print_numbers(out, result)
        moved = [head for head in heads if head["verdict_a"] != head["verdict_b"]]
        for head in moved[:MOST]:
            out.print(f"  {head['layer']}.{head['head']}: {head['verdict_a']} -> {head['verdict_b']}")
    out.print("\n[bold]Summary[/bold]")
    _say(out, meaning(result)[len(encodings(result)) :], "  ")  # those stand first already


def _say(out: Console, sentences: Sequence[str], indent: str) -> None:
    for sentence in sentences:
        lines = textwrap.wrap(sentence, 79, initial_indent=indent, subsequent_indent=indent)
        out.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)


def _print_layers(out: Console, layers: Sequence[Mapping[str, Any]]) -> None:
    out.print("\nlayer    Q'K    O V  kernel  verdicts moved")
    most = max((row["change_W"] or 0.0 for row in layers), default=0.0) or 1.0
    for row in layers:
        bar = "#" * round(24 * (row["change_W"] or 0.0) / most)
        kernel = _share(row["change_kernel"])
        out.print(
            f"{row['layer']:5d} {_share(row['change_W'])} {_share(row['change_V'])} {kernel:>7s}"
            f"  {row['moved']:3d} of {row['heads']:<3d} {bar}"
        )
    out.print("relative change |A - B| / |A|, mean over heads; the bar is Q'K")


def _print_heads(out: Console, heads: Sequence[Mapping[str, Any]], *, every: bool, total: int) -> None:
    title = "Every head" if every else f"Most changed heads ({len(heads)} of {total})"
    out.print(f"\n[bold]{title}[/bold]")
    out.print("head      Q'K    O V  kernel  growth        verdict")
    for head in heads:
        name = f"{head['layer']}.{head['head']}"
        growth = f"{_plain(head['growth_a'])} to {_plain(head['growth_b'])}"
        same = head["verdict_a"] == head["verdict_b"]
        verdict = head["verdict_b"] if same else f"{head['verdict_a']} -> {head['verdict_b']}"
        out.print(
            f"{name:7s} {_share(head['change_W'])} {_share(head['change_V'])} "
            f"{_share(head['change_kernel']):>7s}  {growth:12s}  {verdict}",
            soft_wrap=True,
        )


def _print_numbers(out: Console, result: Mapping[str, Any]) -> None:
    out.print(f"\n[bold]Mean absolute change[/bold] ({len(result['heads'])} heads of {result['of']})")
    for name, value in result["mean_absolute_change"].items():
        out.print(f"  {name:32.32s} {value:.4g}")


def _share(value: float | None) -> str:
    return "     -" if value is None else f"{100 * value:5.1f}%" if value < 10 else f"{100 * value:5.0f}%"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
