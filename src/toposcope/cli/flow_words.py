"""How `toposcope flow` prints what it found, at 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toposcope.cli.common import safe

if TYPE_CHECKING:
    from rich.console import Console

    from toposcope.dynamics.agreement import Agreement
    from toposcope.dynamics.record import FlowResult
    from toposcope.dynamics.regime import Regime


def print_one(screen: Console, result: FlowResult, verdict: Regime | None, word: Agreement) -> None:
    """A flow on a terminal: what a theorem says, what was seen, and every observable from start to end."""
    from rich.table import Table

    from toposcope.dynamics.observables import OBSERVABLES

    settings = result.settings
    mask = "" if "causal" not in settings else "causal, " if settings["causal"] else "no mask, "
    where = f" ({settings['absolute']})" if settings.get("absolute") else ""
    diagonal = f", diagonal {settings['diagonal']:.3g}" if _is_number(settings.get("diagonal")) else ""
    screen.print(f"{safe(result.title)}: {result.count} tokens, {mask}{settings['encoding']}{where}{diagonal}")
    screen.print()
    _say(screen, "[bold]Theorem[/bold]", _verdict_words(verdict))
    _say(screen, "[bold]Run[/bold]", f"{result.status}: {result.status.meaning} (t = {result.end:.3g})")
    _say(screen, "[bold]Together[/bold]", word.sentence)
    table = Table(box=None, pad_edge=False, header_style="bold", title="", title_justify="left")
    table.add_column("")
    for column in ("start", "end", "change"):
        table.add_column(column, justify="right")
    for each in OBSERVABLES:
        if each.name in result.observables:
            first, last = result.change(each.name)
            table.add_row(each.words, _number(first), _number(last), _change(first, last, each.logarithmic))
    screen.print(table)
    screen.print(f"\nlog growth {result.log_growth:.3g}, growth rate {result.growth_rate:.3g} at the end")
    screen.print(f"{result.evaluations} evaluations, {result.accepted} steps, {result.rejected} rejected")
    for event in result.events:
        _say(screen, f"t = {event.time:.4g}", f"{event.name}: {event.words}")
    _print_notes(screen, [result])


def _print_notes(screen: Console, results: list[FlowResult]) -> None:
    for note in dict.fromkeys(note for result in results for note in result.notes):
        _say(screen, "note", note)


def _say(screen: Console, label: str, words: str) -> None:
    """A label and its words, wrapped beside it."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=12, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, words)
    screen.print(grid)


def print_side_by_side(
    screen: Console, names: list[str | None], found: list[tuple[FlowResult, Regime | None, Agreement]]
) -> None:
    """Several flows beside each other, as they ended."""
    from rich.table import Table

    from toposcope.dynamics.observables import OBSERVABLES

    results = [result for result, _, _ in found]
    table = Table(box=None, pad_edge=False, header_style="bold", title="\nAt the end", title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(str(name), justify="right", overflow="fold")
    table.add_row("verdict", *(_short(verdict) for _, verdict, _ in found))
    table.add_row("run", *(str(result.status) for result in results))
    table.add_row("time", *(_number(result.end) for result in results))
    table.add_row("growth rate", *(_number(result.growth_rate) for result in results))
    for each in OBSERVABLES:
        if all(each.name in result.observables for result in results):
            table.add_row(each.words, *(_number(result.change(each.name)[1]) for result in results))
    table.add_row("evaluations", *(str(result.evaluations) for result in results))
    screen.print(table)
    screen.print()
    for name, (result, _, word) in zip(names, found, strict=True):
        _say(
            screen, f"[bold]{name}[/bold]", f"{result.settings['encoding']}: {result.status.meaning}; {word.sentence}"
        )
    _print_notes(screen, results)


def _verdict_words(verdict: Regime | None) -> str:
    if verdict is None:
        return "none speaks of this"
    if verdict.rule is None:
        return f"{verdict.verdict.value}: {verdict.statement}"
    exact = "" if verdict.exact else ", not exact"
    return f"{verdict.verdict.value} ({verdict.rule}, {verdict.scope}{exact}): {verdict.statement}"


def _short(verdict: Regime | None) -> str:
    if verdict is None:
        return "none"
    return verdict.verdict.value + (f" ({verdict.rule})" if verdict.rule else "")


def _number(value: float) -> str:
    return "-" if value != value else f"{value + 0.0:.4g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(value)


def _change(first: float, last: float, ratio: bool) -> str:
    if first != first or last != last:
        return ""
    if ratio and first > 0 and last > 0:
        return f"x {last / first:.3g}"
    return f"{last - first:+.3g}"
