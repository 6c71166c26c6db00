"""How `models.ablation.result` and `models.ablation.check` look on a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from toposcope.cli.common import safe

if TYPE_CHECKING:
    from rich.console import Console

    from toposcope.models.ablation.check import Proof
    from toposcope.models.ablation.result import Ablation, HeadDamage, LayerDeposit
    from toposcope.models.ablation.runner import Meter, Plan
    from toposcope.models.ablation.screen import Screen
    from toposcope.models.deposit import Interval

WORST = 12  # heads that are listed
PAIRS = 8


def print_plan(screen: Console, plan: Plan, meter: Meter) -> None:
    """What is to come, before it begins."""
    done = f" ({plan.already} are already known)" if plan.already else ""
    if plan.measurements:
        screen.print(f"{plan.measurements} measurements{done}: about {_duration(plan.seconds)}.", soft_wrap=True)
    else:
        screen.print("Everything is already measured.")
    if meter.resumable.reason is not None:
        screen.print(f"Every run is a full one: {meter.resumable.reason}.", soft_wrap=True)


def print_ablation(screen: Console, found: Ablation, cut: str) -> None:
    """Base scores, the most damaging heads, the deposit of each layer, pairs, and the screen's quality."""
    from toposcope.models.ablation.replacement import METHODS
    from toposcope.report.ablate_words import meaning

    screen.print(f"[bold]{safe(found.model)}[/bold]: {cut}; {METHODS[found.method]}", soft_wrap=True)  # type: ignore[index]
    for text in found.texts:
        base = sum(text.base) / len(text.base)
        floor = "" if text.floor is None else f"; {sum(text.floor) / len(text.floor):.3f} with positions off"
        screen.print(f"{safe(text.name)}: {base:.3f} {found.unit}{floor}", soft_wrap=True)
    _print_heads(screen, found)
    if found.layers:
        _print_layers(screen, found)
    if found.pairs:
        _print_pairs(screen, found)
    if found.screen is not None:
        _print_screen(screen, found.screen)
    for note in found.notes:
        screen.print(note, soft_wrap=True)
    screen.print("\n[bold]Summary[/bold]")
    for sentence in meaning(found.as_dict()):
        lines = textwrap.wrap(sentence, 79, initial_indent="  ", subsequent_indent="  ")
        screen.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)


def _print_heads(screen: Console, found: Ablation) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("head")
    names = [text.name for text in found.texts]
    for name in names:
        table.add_column(name, justify="right")
        table.add_column("+-", justify="right")
    if "shuffled" in names:
        table.add_column("position", justify="right")
    ranked = found.ranked()
    for each in ranked[:WORST]:
        cells = [cell for name in names for cell in (_signed(each.damage.get(name)), _plain(each.error.get(name)))]
        position = [_signed(position_specific(each))] if "shuffled" in names else []
        table.add_row(each.name, *cells, *position)
    screen.print(f"[bold]most damaging heads[/bold] ({len(ranked)} measured; how much the loss rises without them;")
    screen.print("+- is the standard error over sequences)")
    screen.print(table)
    if "shuffled" in names:
        screen.print("position: text - shuffled. Where the order of words is lost, a head that")
        screen.print("carries position has nothing to carry: what it costs on the text alone is that.")
    if "repeated" in names:
        screen.print("repeated: random tokens twice, second half: needs position and copying only.")


def position_specific(each: HeadDamage) -> float | None:
    """Damage on the text beyond that on its shuffled copy: an index, no proof, of position carried."""
    if "text" not in each.damage or "shuffled" not in each.damage:
        return None
    return each.damage["text"] - each.damage["shuffled"]


def _print_layers(screen: Console, found: Ablation) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("layer", "head", "damage", "DI", "95 %", "share", "gini", "same head"):
        table.add_column(column, justify="right" if column != "head" else "left")
    for each in found.layers:
        table.add_row(*_layer_row(each))
    screen.print("[bold]deposit of each layer[/bold]")
    screen.print(table)
    screen.print("DI: 1 if one head carries all that position is worth (base to positions off),")
    screen.print("0 if at least two matter equally or none does alone. share, gini: of the damages")
    screen.print("in the layer. same head: share of resampled texts in which that head is worst.")
    if all(each.deposit.di is None for each in found.layers):
        screen.print("DI is undefined here: the score with positions off is unknown, or too near.")


def _layer_row(each: LayerDeposit) -> list[str]:
    spread = each.spread
    return [
        str(each.layer),
        "-" if each.deposit.head is None else f"{each.layer}.{each.deposit.head}",
        _signed(each.deposit.d_max),
        _plain(each.deposit.di),
        _interval(None if spread is None else spread.di),
        _plain(each.deposit.share, 2),
        _plain(each.deposit.gini, 2),
        "-" if spread is None or spread.same_head is None else f"{spread.same_head:.0%}",
    ]


def _print_pairs(screen: Console, found: Ablation) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("pair", "both", "first", "second", "redundancy", "+-"):
        table.add_column(column, justify="right" if column != "pair" else "left")
    for each in found.pairs[:PAIRS]:
        numbers = (_signed(value) for value in (each.damage, *each.alone, each.redundancy))
        table.add_row(f"{each.first} {each.second}", *numbers, _plain(each.error))
    screen.print(f"[bold]pairs removed together[/bold] ({len(found.pairs)} tried)")
    screen.print(table)
    screen.print("redundancy: both - first - second. Above 0 each can stand in for the other.")


def _print_screen(screen: Console, found: Screen) -> None:
    rho = "-" if found.rho is None else f"{found.rho:.2f}"
    screen.print(f"[bold]screen[/bold]: {len(found.estimates)} heads estimated by two backward passes a sequence,")
    screen.print(
        f"{len(found.chosen)} chosen, {len(found.sampled)} of the others drawn; Spearman {rho} with the measured."
    )
    if found.miss is not None:
        miss = found.miss
        screen.print(
            f"missed of the true top tenth: {miss.rate:.0%} ({miss.low:.0%} to {miss.high:.0%}, 95 %; "
            f"{miss.found} of {miss.sampled} drawn)"
        )


def print_proof(screen: Console, found: Proof, model: str) -> None:
    """What held and what did not."""
    held = [each for each in found.heads if each.holds]
    screen.print(
        f"[bold]{safe(model)}[/bold]: {len(found.heads)} heads removed one at a time ({found.method})", soft_wrap=True
    )
    for question, name in (
        ("its slice before the output projection is what it was replaced by", "replaced"),
        ("all other slices of the layer are the same to the bit", "others_same"),
        ("so is everything that enters earlier output projections", "earlier_same"),
        ("the next plain run gives the first output again, to the bit", "undone"),
    ):
        right = sum(getattr(each, name) for each in found.heads)
        screen.print(f"{right:4d} of {len(found.heads)}  {question}", soft_wrap=True)
    same = found.weights_before == found.weights_after
    screen.print(f"weights: sha256 {found.weights_before[:16]}..., {'the same' if same else 'CHANGED'} after")
    idle = [f"{each.layer}.{each.head}" for each in found.heads if not each.output_changed]
    if idle:
        screen.print(f"without effect on the output: {', '.join(idle)}", soft_wrap=True)
    for each in found.heads:
        if not each.holds:
            screen.print(f"[red]head {each.layer}.{each.head} does not hold[/red]: {each}", soft_wrap=True)
    verdict = "The proof holds." if found.holds else "[red]The proof does not hold.[/red]"
    screen.print(f"{verdict} ({len(held)} of {len(found.heads)} heads)")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _plain(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(found: Interval | None) -> str:
    return "-" if found is None else f"{found.low:.3f}-{found.high:.3f}"
