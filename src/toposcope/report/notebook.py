"""A page of blocks as a fragment for a notebook: words, tables and head maps, without any script."""

from __future__ import annotations

from functools import cache
from typing import Any

from toposcope.core.printable import sentences
from toposcope.report.blocks import Attention, HeadMap, Measure, Page, shown
from toposcope.report.paint import painted

LONGEST = 20_000


def fragment(page: Page) -> str:
    """The HTML of the page's main sections; every word in it is escaped."""
    return _template().render(
        page=page, sections=[each for each in page.sections if not each.detail], tables=page.tables
    )


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("toposcope.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=lambda value: sentences(value, most=LONGEST) if type(value) is str else value,
    )  # fmt: skip
    environment.filters["shown"] = shown
    environment.globals |= {"map_rows": map_rows, "map_legend": map_legend, "attention_rows": attention_rows}
    return environment.get_template("notebook.html.j2")


def map_rows(block: HeadMap, page: Page) -> list[tuple[int, list[tuple[str, str]]]]:
    """A head map as rows of (layer, cells), each cell its colour and its title."""
    columns, measure = page.tables[block.table], block.measures[0]
    colours = painted(measure, columns[measure.key])
    rows: dict[int, list[tuple[str, str]]] = {}
    for layer, head, value, colour in zip(
        columns["layer"], columns["head"], columns[measure.key], colours, strict=True
    ):
        rows.setdefault(layer, []).append((colour, f"{layer}.{head}: {shown(value, measure.format)}"))
    return list(rows.items())


def map_legend(block: HeadMap, page: Page) -> list[tuple[str, str]]:
    """What the colours of a map stand for: each category there is, or the least and the largest value."""
    measure = block.measures[0]
    values = page.tables[block.table][measure.key]
    if measure.kind == "category":
        there = {str(value) for value in values}
        told: list[Any] = [*(word for word in measure.words if word in there), *sorted(there - set(measure.words))]
    else:
        numbers = [value for value in values if isinstance(value, int | float)]
        told = sorted({min(numbers), max(numbers)}) if numbers else []
    colours = dict(zip(values, painted(measure, values), strict=True))
    return [(colours[value], shown(value, measure.format)) for value in told]


def attention_rows(block: Attention) -> list[tuple[str, list[tuple[str, str] | None]]]:
    """The still picture of attention: each token with its cells, a colour and a title where it sees that key."""
    still = block.still
    measure = Measure("attention", "attention", "sequential", "", low=0.0, high=1.0)
    rows = []
    for token, cells in zip(still.tokens, still.cells, strict=True):
        colours = painted(measure, [None if each is None else each**0.5 for each in cells])
        looks = zip(colours, cells, still.tokens, strict=False)
        rows.append((token, [None if p is None else (paint, f"{token} > {key}: {p:.1%}") for paint, p, key in looks]))
    return rows
