"""A page's figure for a paper: its charts and maps marked `in_figure` side by side, attention below them.

As .pdf, .svg or .png, drawn by Vega-Lite itself (vl-convert, of the [plot] extra) from the page's specifications. Two
columns of a paper are 7 inches wide: 504 points; text is 7 to 8 points, and stays text in PDF and SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from toposcope.core.errors import BadValue, MissingExtra
from toposcope.core.files import write_bytes
from toposcope.report import charts
from toposcope.report.blocks import Attention, Chart, HeadMap, Measure, Page, Row
from toposcope.report.paint import colour, painted, palette

Drawn = Chart | HeadMap | Attention
FORMATS = ("pdf", "svg", "png")
WIDE, COLUMN = 504, 245  # two columns of a paper, and one, in points
AXIS = 46  # points that an axis with its labels takes beside a picture
HEIGHT = 130
LINE = 9  # of a name that is broken into lines
CELL = 8  # of attention: as high as the name of its token
_THEME: Mapping[str, Any] = {
    "font": "Helvetica, Arial, Liberation Sans, sans-serif",
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 7, "titleFontSize": 8, "titleFontWeight": "normal", "grid": False, "tickSize": 3,
        "domainWidth": 0.6, "tickWidth": 0.6, "labelOverlap": "greedy",
    },
    "legend": {
        "labelFontSize": 7, "titleFontSize": 7, "titleFontWeight": "normal", "orient": "bottom", "columns": 2,
        "symbolSize": 30, "labelLimit": 110, "gradientLength": 90, "gradientThickness": 6,
    },
    "title": {"fontSize": 8, "anchor": "start", "fontWeight": "bold", "offset": 6},
    "line": {"strokeWidth": 1.2},
    "point": {"filled": True, "size": 10},
    "numberFormat": ".3~g",
}  # fmt: skip


def check_name(path: str | Path) -> str:
    """The kind of file, from its name; complains where it is none of ours, or where the library is missing."""
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise BadValue(f"cannot draw to '{path}': its name must end in .pdf, .svg or .png.")
    _converter()
    return kind


def draw(page: Page, path: str | Path) -> Path:
    """Draw the page's figure into a file."""
    kind = check_name(path)
    chosen = list(_chosen([block for section in page.sections for block in section.blocks]))
    if not chosen:
        raise BadValue("this result has nothing that could be drawn as a figure.")
    spec = figure_spec(page, chosen)
    converter = _converter()
    if kind == "png":
        return write_bytes(path, converter.vegalite_to_png(spec, ppi=300))
    if kind == "pdf":
        return write_bytes(path, converter.vegalite_to_pdf(spec))
    return write_bytes(path, converter.vegalite_to_svg(spec).encode())


def figure_spec(page: Page, blocks: Sequence[Drawn]) -> dict[str, Any]:
    """One Vega-Lite specification of all charts and maps beside one another, at most three in a row."""
    drawings = [block for block in blocks if not isinstance(block, Attention)]
    across = min(3, len(drawings))
    width = (COLUMN if across == 1 else WIDE) / max(across, 1) - AXIS
    drawn = [{"height": HEIGHT, "title": each.title, **_spec(page, each), "width": width} for each in drawings]
    rows = [drawn[i : i + across] for i in range(0, len(drawn), across or 1)]
    rows += [[_attention(block)] for block in blocks if isinstance(block, Attention)]
    line = {**_THEME["line"], "color": palette()[0]}
    config = {**_THEME, "line": line, "range": {"category": list(palette())}, "bar": {"color": palette()[0]}}
    own = {"scale": dict.fromkeys(("color", "strokeDash", "shape"), "independent")}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "vconcat": [{"hconcat": row, "resolve": own} for row in rows],
        "resolve": own,
        "config": config,
    }


def _chosen(blocks: Sequence[Any]) -> list[Drawn]:
    found: list[Drawn] = []
    for block in blocks:
        if isinstance(block, Row):
            found += _chosen(block.blocks)
        elif isinstance(block, Attention) or (isinstance(block, Chart | HeadMap) and block.in_figure):
            found.append(block)
    return found


def _spec(page: Page, block: Chart | HeadMap) -> dict[str, Any]:
    if isinstance(block, HeadMap):
        return _map(page, block)
    return {**_small(block.spec), "data": {"values": _rows(page, block.table)}}


def _small(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The page's chart at the height of a figure; a list of names has as much of it as their smaller lines need."""
    lists = [
        each["encoding"]["y"] for each in spec.get("layer", ()) if "sort" in each.get("encoding", {}).get("y", ())
    ]
    if not lists:
        return {**spec, "height": HEIGHT}
    names, height = charts.listed(lists[0]["field"], lists[0]["sort"], LINE)
    layers = [
        {**each, "encoding": {**each["encoding"], "y": names}} if each["encoding"].get("y") in lists else each
        for each in spec["layer"]
    ]
    return {**spec, "layer": layers, "height": max(HEIGHT, height)}


def _map(page: Page, block: HeadMap) -> dict[str, Any]:
    """Layers down, heads across, in the colours of the map's first measure."""
    measure = block.measures[0]
    columns = ("layer", "head", measure.key, *filter(None, (measure.faded_unless,)))
    rows = [{name: row[name] for name in columns} for row in _rows(page, block.table)]
    return {
        "title": f"{measure.label} of each head",
        "data": {"values": rows},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "head", "type": "ordinal", "title": "head", "axis": {"labelAngle": 0}},
            "y": {"field": "layer", "type": "ordinal", "title": "layer"},
            "color": _scale(measure, [row[measure.key] for row in rows]),
            **_faded(measure),
        },
    }


def _attention(block: Attention) -> dict[str, Any]:
    """What stands still of attention: queries down, keys across, by name and number (a name can stand twice)."""
    still = block.still
    names = [f"{token.strip() or '·'} {place}" for place, token in enumerate(still.tokens)]
    rows = [
        {"query": query, "key": key, "attention": share}
        for query, shares in zip(names, still.cells, strict=True)
        for key, share in zip(names, shares, strict=True)
        if share is not None
    ]
    named = {"type": "ordinal", "sort": names}
    axis = {"labelOverlap": False, "labelFontSize": 6, "ticks": False}
    colours = _scale(Measure("attention", "Share of attention", "sequential", "", low=0.0, high=1.0), [])
    colours["scale"]["type"] = "sqrt"  # most shares are small
    return {
        "title": f"Attention of head {still.head} on the first tokens",
        "width": CELL * len(names),
        "height": CELL * len(names),
        "data": {"values": rows},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "key", "axis": {**axis, "labelAngle": -90}, **named},
            "y": {"field": "query", "axis": axis, **named},
            "color": colours,
        },
    }


def _faded(measure: Measure) -> dict[str, Any]:
    """What is not sure is drawn pale."""
    if measure.faded_unless is None:
        return {}
    return {
        "opacity": {"condition": {"test": f"datum['{measure.faded_unless}'] === false", "value": 0.4}, "value": 1}
    }


def _scale(measure: Measure, values: Sequence[Any]) -> dict[str, Any]:
    if measure.kind == "category":
        words = list(dict.fromkeys(str(value) for value in values))
        scale: dict[str, Any] = {"domain": words, "range": painted(measure, words)}
        legend = {"labelExpr": "replace(datum.label, /_/g, ' ')"}
        return {"field": measure.key, "type": "nominal", "title": None, "scale": scale, "legend": legend}
    known = [value for value in values if value is not None]
    low = measure.low if measure.low is not None else min(known, default=0.0)
    high = measure.high if measure.high is not None else max(known, default=1.0)
    names = [f"ramp-{i}" for i in range(5)]
    if measure.kind == "diverging":
        (low, high), names = measure.around(low, high), ["low-2", "low-1", "mid", "high-1", "high-2"]
        names = names[::-1] if measure.harm else names
    kind = "linear" if measure.kind != "logarithmic" or low < 0 else "log" if low > 0 else "symlog"
    scale = {"type": kind, "domain": [low, high], "range": [colour(name) for name in names], "interpolate": "rgb"}
    return {"field": measure.key, "type": "quantitative", "title": measure.label.lower(), "scale": scale}


def _rows(page: Page, table: str) -> list[dict[str, Any]]:
    columns = page.tables[table]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _converter() -> ModuleType:
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtra("figures need vl-convert: pip install 'toposcope[plot]'.") from error
    converter: ModuleType = vl_convert
    return converter
