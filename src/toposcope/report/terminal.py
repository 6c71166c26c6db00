"""A page of blocks on a terminal: 80 columns unless it is wider, no pictures, the same words and numbers."""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table
from rich.text import Text

from toposcope.core.printable import LONGEST_PATH, printable, sentences
from toposcope.report.blocks import (
    Attention,
    Command,
    Facts,
    Findings,
    HeadMap,
    Listing,
    Measure,
    Page,
    Pairs,
    Paragraphs,
    Row,
    Summary,
    shown,
)
from toposcope.report.console import IndentedConsole, literal

WIDTH = 80
MOST_SKIPPED = 6
BAR = 20
COLOURS = {"ok": "green", "warning": "yellow", "fault": "red", "cannot_tell": "cyan"}
_WORDS = ("text", "wrap", "plain")


def text(page: Page, *, width: int = WIDTH) -> str:
    """The page as plain text."""
    out = io.StringIO()
    show(page, IndentedConsole(file=out, width=width, highlight=False, soft_wrap=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def show(page: Page, out: IndentedConsole, *, full: bool = False, offer: bool = False) -> None:
    """Print the page: its title, its numbers, its sections; in `full` with all details and all rows of tables.

    `offer` names the sections that --full would add.
    """
    below = len(page.title) + 2 + len(page.line) > out.width
    beside = f"  {_safe(page.line)}" if page.line and not below else ""
    out.print(f"[bold]{_safe(page.title)}[/bold]{beside}", soft_wrap=" " not in page.title)
    if below and page.line:
        out.print(f"  {_safe(page.line)}")
    if page.facts:
        out.print("  " + "; ".join(f"{_safe(value)} {_safe(label)}" for value, label in page.facts))
    more = []
    for section in page.sections:
        drawable = [block for block in section.blocks if _drawer(block) is not None]
        if full:
            drawable = [_in_full(block) for block in drawable]
        elif offer:
            drawable = [
                replace(block, more="--verbose") if isinstance(block, Findings) else block for block in drawable
            ]
        if drawable and section.full and not full:
            more.append(section.title)
        elif drawable and (full or not section.detail):
            out.print(f"\n[bold]{_safe(section.title)}[/bold]")
            for block in drawable:
                _draw(block, page, out)
    _left_out(page, out)
    if more and offer:
        listed = "; ".join(more)
        out.print(f"\n[bold]With --full[/bold]\n  {_safe(listed)}{'' if listed.endswith('?') else '.'}")


def _left_out(page: Page, out: IndentedConsole) -> None:
    if page.skipped:
        out.print("\n[bold]Left out[/bold]")
        for what, why in page.skipped[:MOST_SKIPPED]:
            out.print(f"  {_safe(what)}: {_safe(why)}")
        if len(page.skipped) > MOST_SKIPPED:
            out.print(f"  ... {len(page.skipped) - MOST_SKIPPED} more; --json and the page hold all")


def _in_full(block: Any) -> Any:
    """The same block with nothing left to the page."""
    if isinstance(block, Listing):
        return replace(block, top=sys.maxsize, answer=())
    if isinstance(block, Findings):
        return replace(block, explained=True)
    return replace(block, blocks=tuple(map(_in_full, block.blocks))) if isinstance(block, Row) else block


def _draw(block: Any, page: Page, out: IndentedConsole) -> None:
    drawer = _drawer(block)
    if drawer is not None:
        drawer(block, page, out)


def _drawer(block: Any) -> Callable[[Any, Page, IndentedConsole], None] | None:
    if isinstance(block, Row) and not any(_drawer(each) for each in block.blocks):
        return None
    return _DRAWERS.get(type(block))


def _summary(block: Summary, page: Page, out: IndentedConsole) -> None:
    for sentence in block.sentences:
        out.print(f"  {_safe(sentence)}")


def _paragraphs(block: Paragraphs, page: Page, out: IndentedConsole) -> None:
    for paragraph in block.paragraphs:
        out.print(f"  {_safe(paragraph)}")


def _command(block: Command, page: Page, out: IndentedConsole) -> None:
    out.print(f"  {_safe(block.question)}")
    out.print(f"  {literal(sentences(block.line, word=LONGEST_PATH))}", soft_wrap=True)


def _facts(block: Facts, page: Page, out: IndentedConsole) -> None:
    out.print("  " + "; ".join(f"{_safe(value)} {_safe(label)}" for value, label in block.items))


def _findings(block: Findings, page: Page, out: IndentedConsole) -> None:
    ok = [each for each in block.items if each["status"] == "ok"]
    folded = [] if block.explained or block.kept is None else [each for each in ok if each["id"] not in block.kept]
    if len(folded) < 2:
        folded = []
    for each in block.items:
        if each in folded:
            continue
        colour = COLOURS[each["status"]]
        status = {"cannot_tell": "unclear"}.get(each["status"], each["status"])
        title, *rest = textwrap.wrap(sentences(each["title"]), max(20, out.width - 10)) or [""]
        out.print(f"  [{colour}]{status:7s}[/{colour}] {literal(title)}")
        for line in rest:
            out.print(f"          {literal(line)}")
        if block.explained or each["status"] != "ok":
            out.print(f"          {_safe(each['explanation'])}")
            if each["what_to_do"]:
                out.print(f"          What to do: {_safe(each['what_to_do'])}")
    if folded:
        more = " more" if len(folded) < len(ok) else ""
        out.print(f"  [{COLOURS['ok']}]ok     [/{COLOURS['ok']}] {len(folded)}{more} checks passed ({block.more})")


def _pairs(block: Pairs, page: Page, out: IndentedConsole) -> None:
    out.print(f"  {_safe(block.title)}")
    if block.sentence:
        out.print(f"  {_safe(block.sentence)}")
    for label, value in block.items:
        for i, line in enumerate((value,) if isinstance(value, str) else value):
            out.print(f"    {_safe(label) + ': ' if i == 0 else ''}{_safe(line)}")


def _row(block: Row, page: Page, out: IndentedConsole) -> None:
    for each in block.blocks:
        _draw(each, page, out)


def _listing(block: Listing, page: Page, out: IndentedConsole) -> None:
    if block.answer:
        kept = tuple(column for column in block.columns if column.key in block.answer)
        block = replace(block, columns=kept, sentence=block.answer_sentence)
    columns = page.tables[block.table]
    count = len(columns[block.columns[0].key])
    top = min(count, block.top)
    cells = [[shown(columns[column.key][i], column.show) for i in range(top)] for column in block.columns]
    chosen, fits = _fitting(block, cells, out.width - 2)
    if block.sentence:
        out.print(f"  {_safe(block.sentence)}")
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for i in chosen:
        column = block.columns[i]
        words = column.show in _WORDS
        table.add_column(
            Text(column.heading),
            justify="left" if words else "right",
            no_wrap=fits and column.show != "wrap",
            overflow="fold",
        )
    for row in zip(*(cells[i] for i in chosen), strict=True):
        table.add_row(*(Text(printable(cell, 400)) for cell in row))
    lines = io.StringIO()
    IndentedConsole(file=lines, width=out.width - 2, highlight=False).print(table)
    for line in lines.getvalue().splitlines():
        out.print(Text(f"  {line.rstrip()}"), soft_wrap=True)
    if top < count:
        others = f", {_safe(block.others)}" if block.others else ""
        out.print(f"  ... {count - top:,} more{others}; --csv, --json and the page hold all")


def _fitting(block: Listing, cells: Sequence[Sequence[str]], width: int) -> tuple[list[int], bool]:
    """The columns that are shown: all where they fit, else those that the view calls brief; and whether they fit."""
    every = list(range(len(block.columns)))
    needed = [_needed(column.heading, column.show, cell) for column, cell in zip(block.columns, cells, strict=True)]

    def fit(chosen: Sequence[int]) -> bool:
        return sum(needed[i] + 2 for i in chosen) <= width

    brief = [i for i in every if block.columns[i].key in block.brief]
    chosen = every if fit(every) or not brief else brief
    return chosen, fit(chosen)


def _needed(heading: str, show: str, cells: Sequence[str]) -> int:
    if show == "wrap":
        return max(len(heading), 24)
    return max(len(heading), *map(len, cells), 1)


def _head_map(block: HeadMap, page: Page, out: IndentedConsole) -> None:
    """One line per layer, one letter or digit per head: the whole model at a glance."""
    columns = page.tables[block.table]
    measure = block.measures[0]
    low, high = _range(measure, columns[measure.key])
    rows: dict[int, dict[int, str]] = {}
    for layer, head, value in zip(columns["layer"], columns["head"], columns[measure.key], strict=True):
        rows.setdefault(layer, {})[head] = _mark(measure, value, low, high)
    wide = max(max(heads) for heads in rows.values()) + 1
    means = _means(block, columns)
    if block.mean is None:
        out.print(f"  {'layer':>5s}  {measure.label[:1].lower()}{measure.label[1:]} of each head")
    else:
        mean = block.mean.replace("_", " ")
        out.print(f"  {measure.label} of each head, and the mean {mean} of each layer")
        out.print(f"  layer  {'heads':{wide}s}  mean {mean}")
    for layer, heads in rows.items():
        letters = "".join(heads.get(i, " ") for i in range(wide)).ljust(5)
        out.print(f"  {layer:5d}  {literal(letters)}  {means.get(layer, '')}".rstrip(), soft_wrap=True)
    if measure.words:
        there = [word for word in measure.words if word in columns[measure.key]]
        out.print("         " + ", ".join(f"{measure.words[word]} {word.replace('_', ' ')}" for word in there))
    else:
        without = "; - has none" if any("-" in each.values() for each in rows.values()) else ""
        ends = f"0 is {shown(low, measure.format)}, 9 is {shown(high, measure.format)}"
        out.print(f"         One digit for each head: {ends}{without}")
    out.print(f"         {'' if measure.words else f'{measure.label}: '}{_safe(measure.sentence)}")
    for each in block.measures:
        if each.key == block.mean != measure.key:
            out.print(f"         {each.label}: {_safe(each.sentence)}")


def _attention(block: Attention, page: Page, out: IndentedConsole) -> None:
    """Its strongest pairs; the rest needs a page."""
    out.print(f"  Head {_safe(block.still.head)}, its strongest pairs on the first tokens:")
    for pair in block.still.pairs:
        out.print(f"    {_safe(pair)}")


def _means(block: HeadMap, columns: Mapping[str, Sequence[Any]]) -> dict[int, str]:
    """By layer, the mean of the column that the map wants beside it, with a bar from 0 to 1."""
    if block.mean is None:
        return {}
    known: dict[int, list[float]] = {}
    for layer, value in zip(columns["layer"], columns[block.mean], strict=True):
        if value is not None:
            known.setdefault(layer, []).append(value)
    means = {layer: sum(values) / len(values) for layer, values in known.items()}
    return {layer: f"{mean:.2f} {'#' * round(BAR * min(1.0, max(0.0, mean)))}" for layer, mean in means.items()}


def _range(measure: Measure, values: Sequence[Any]) -> tuple[float, float]:
    known = [value for value in values if isinstance(value, int | float)]
    if not known:
        return 0.0, 1.0
    low = measure.low if measure.low is not None else min(known)
    return low, measure.high if measure.high is not None else max(known)


def _mark(measure: Measure, value: Any, low: float, high: float) -> str:
    if measure.words:
        return measure.words.get(str(value), "-")
    if value is None:
        return "-"
    return str(min(9, max(0, int(10 * (value - low) / (high - low))))) if high > low else "0"


def _safe(words: object) -> str:
    return literal(sentences(words))


_DRAWERS: Mapping[type, Callable[[Any, Page, IndentedConsole], None]] = {
    Summary: _summary,
    Paragraphs: _paragraphs,
    Command: _command,
    Facts: _facts,
    Findings: _findings,
    Pairs: _pairs,
    Row: _row,
    Listing: _listing,
    HeadMap: _head_map,
    Attention: _attention,
}
