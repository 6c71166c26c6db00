"""How `toposcope loss` looks on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toposcope.cli.common import safe

if TYPE_CHECKING:
    from rich.console import Console

    from toposcope.models.loss import Bin, Condition, LossResult

MOST = 16  # conditions that are shown when many were measured
COLUMNS = 4  # conditions beside one another in the table by position


def print_loss(out: Console, found: LossResult) -> None:
    """The loss as it is, what each encoding changes, and the loss by position."""
    own, others = found.conditions[0], found.conditions[1:]
    out.print(f"[bold]{safe(found.model)}[/bold] on {safe(found.text)}", soft_wrap=True)
    what = "hidden token" if found.kind == "masked token" else "token"
    out.print(f"  {own.loss:.3f} nats per {what} as it is")
    if others:
        out.print("\n[bold]With another encoding[/bold] (difference, 95 % over sequences)")
        shown = sorted(others, key=lambda row: -row.difference)[:MOST] if len(others) > MOST else others
        for row in shown:
            out.print(f"  {_label(row):<36.36s} {row.loss:7.3f}  {row.difference:+8.4f}{_half(row)}")
        if len(shown) < len(others):
            out.print(f"  ... the {len(shown)} largest of {len(others)}; --csv or --json hold all")
    columns = [own, *others[: COLUMNS - 1]] if len(others) <= MOST else [own]
    print_bins(out, found, columns)


def print_bins(out: Console, found: LossResult, columns: list[Condition]) -> None:
    """The mean loss of tokens by the position they are predicted from."""
    out.print("\n[bold]By position[/bold] (of the token that predicts, counted from 0)")
    out.print(f"  {'positions':>15s} {'tokens':>7s}" + "".join(f" {_label(row):>12.12s}" for row in columns))
    for index, part in enumerate(columns[0].bins):
        cells = "".join(f" {row.bins[index].loss:12.3f}" for row in columns)
        out.print(f"  {_span(part):>15s} {part.tokens:7d}{cells}{_beyond(part, found.context)}")


def _label(row: Condition) -> str:
    return row.encoding if row.where is None else f"{row.encoding} in {row.where}"


def _half(row: Condition) -> str:
    return "" if row.half_width is None else f" ± {row.half_width:.4f}"


def _span(part: Bin) -> str:
    return str(part.first) if part.first == part.last else f"{part.first}-{part.last}"


def _beyond(part: Bin, context: int | None) -> str:
    return "  beyond the context" if context is not None and part.last >= context else ""
