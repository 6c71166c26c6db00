"""Vega-Lite specifications that reports share; data and theme are added in the page."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from toposcope.report import paint

PALETTE = paint.palette()
INK = paint.colour("ink")  # the page's own in either theme: see the stylesheet
VERDICTS = {
    word.replace("_", " "): paint.colour(word)
    for word in ("converges", "diverges", "not_convergent", "bounded", "diverges_above", "indeterminate", "inactive")
}
MANY = 5  # curves with bands: of more, bands are fainter
_BINARY = "datum.value >= {0} ? format(datum.value / {0}, '~r') + '{1}' : "
POWERS: dict[str, Any] = {  # of two, as contexts are told: 512, 1k, 128k, 1M
    "labelExpr": _BINARY.format(2**20, "M") + _BINARY.format(2**10, "k") + "format(datum.value, '~r')",
    "labelOverlap": "parity",
    "labelSeparation": 6,
}
_POWER = "log(datum.value) / LN10"
DECADES: dict[str, Any] = {  # of a logarithmic axis: a line and a number for each power of ten
    "labelOverlap": "greedy",  # numbers between powers of ten make room for these
    "gridOpacity": {"condition": {"test": f"abs({_POWER} - round({_POWER})) < 1e-6", "value": 1}, "value": 0},
    "labelExpr": "datum.label && (datum.value >= 1e4 ? format(datum.value, '~s') : "
    "datum.value < 9e-5 ? format(datum.value, '.0e') : datum.label)",
}
WHOLE = ("layer", "layers", "step", "offset", "pair", "sequence", "heads")  # counted: no ticks between whole numbers
NAME = 26  # characters of a name beside a chart, in a line
LINE = 12  # height of such a line
Spec = dict[str, Any]


def palette(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def quantity(field: str, title: str | None = None, **scale: Any) -> Spec:
    """A numerical channel."""
    found: Spec = {"field": field, "type": "quantitative", "title": title or field.replace("_", " ")}
    if scale:
        found["scale"] = scale
    return found


def _counted(field: str) -> Spec:
    return {**quantity(field), **({"axis": {"tickMinStep": 1}} if field in WHOLE else {})}


def coloured(field: str, colours: Mapping[str, str] | None = None, title: str | None = None) -> Spec:
    """A channel of categories, in the given colours."""
    found: Spec = {"field": field, "type": "nominal", "title": title or field}
    if colours:
        found["scale"] = {"domain": list(colours), "range": list(colours.values())}
    return found


def dashed(field: str, colours: Mapping[str, str] | None = None, title: str | None = None) -> Spec:
    """The second channel of the same categories: a colour alone is not told apart by every eye."""
    found = coloured(field, colours, title)
    dashes = paint.dashes(list(colours.values()) if colours else PALETTE)
    found["scale"] = {**found.get("scale", {}), "range": [list(each) for each in dashes]}
    return {**found, "legend": {"symbolType": "stroke", "symbolSize": 240, "symbolStrokeWidth": 1.5}}


def in_colours_of_encodings(spec: Spec, field: str, names: Sequence[str]) -> Spec:
    """The same chart with the categories of `field`, which begin with an encoding, in the colours of encodings."""
    return in_colours(spec, field, paint.encoding_colours(names))


def in_colours(spec: Spec, field: str, colours: Mapping[str, str]) -> Spec:
    """The same chart with the categories of `field` in these colours, and in this order."""

    def recoloured(part: Spec) -> Spec:
        made = dict(part)
        if "layer" in part:
            made["layer"] = [recoloured(each) for each in part["layer"]]
        channels = part.get("encoding", {})
        if channels.get("color", {}).get("field") == field:
            title = channels["color"].get("title")
            made["encoding"] = {**channels, "color": coloured(field, colours, title)}
            if channels.get("strokeDash", {}).get("field") == field:
                made["encoding"]["strokeDash"] = dashed(field, colours, title)
            if "shape" in channels:
                scale = {**channels["shape"]["scale"], "domain": list(colours)}
                made["encoding"]["shape"] = {**channels["shape"], "scale": scale}
        return made

    return recoloured(spec)


def line(
    x: str, y: str, *, colour: str | None = None, dash: Mapping[str, Sequence[str]] | None = None, zero: bool = False,
    height: int = 220, log_x: bool = False, log_y: bool = False, points: bool = False, x_title: str | None = None,
    y_title: str | None = None, y_domain: tuple[float, float] | None = None,
) -> Spec:  # fmt: skip
    """A curve, or one for each category; `zero` draws the axis of zero.

    Each category has a dash of its own. `dash` names a second field with its two words: curves of the first are drawn
    whole, those of the second dashed, as the chart's sentence says, and categories have points of their own shape.
    """
    horizontal = quantity(x, x_title, **({"type": "log", "base": 2} if log_x else {"nice": False, "zero": False}))
    if log_x:
        horizontal["axis"] = POWERS
    elif x in WHOLE:
        horizontal["axis"] = {"tickMinStep": 1}
    scale: Spec = {"domain": list(y_domain)} if y_domain else {"zero": False}
    vertical = quantity(y, y_title, **({"type": "log"} if log_y else scale))
    if log_y:
        vertical["axis"] = {"tickCount": 5, **DECADES}
    encoding: Spec = {
        "x": horizontal,
        "y": vertical,
        "tooltip": [{"field": f} for f in (x, y, *((colour,) if colour else ()))],
    }
    if colour:
        encoding["color"] = coloured(colour)
        encoding["strokeDash"] = dashed(colour)
    for field, words in (dash or {}).items():
        encoding["strokeDash"] = {
            "field": field,
            "type": "nominal",
            "title": None,
            "scale": {"domain": list(words), "range": [[1, 0], [5, 3]]},
            "legend": None,
        }
        encoding["tooltip"].append({"field": field})
    curve: Spec = {
        "mark": {
            "type": "line",
            "point": {"size": 24, "clip": bool(y_domain)} if points else False,  # whole at the edges, too
            "clip": True,
        },
        "encoding": encoding,
    }
    layers = [curve]
    if dash and colour:
        shape = {**coloured(colour), "scale": {"range": list(paint.SHAPES)}}
        layers.append({"mark": {"type": "point", "size": 34}, "encoding": {**encoding, "shape": shape}})
        del layers[-1]["encoding"]["strokeDash"]
    if zero:
        layers.insert(0, {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"y": {"datum": 0}}})
    return {"height": height, "layer": layers}


def from_zero(spec: Spec, last: float) -> Spec:
    """The same with a horizontal axis that begins at 0 and is logarithmic beyond 1: 0, 1, 2, 4, ..."""
    marks = [0, *(2**power for power in range(64) if 2**power <= max(last, 1))]
    axis = {**POWERS, "values": marks}

    def changed(part: Spec) -> Spec:
        found = {**part}
        if "layer" in part:
            found["layer"] = [changed(each) for each in part["layer"]]
        if "x" in part.get("encoding", {}):
            x = {**part["encoding"]["x"], "scale": {"type": "symlog", "constant": 1}, "axis": axis}
            found["encoding"] = {**part["encoding"], "x": x}
        return found

    return changed(spec)


def folded(spec: Spec, columns: Sequence[str], key: str, value: str) -> Spec:
    """The same chart of columns turned into rows: `key` names the column, `value` holds its number."""
    return {**spec, "transform": [{"fold": list(columns), "as": [key, value]}]}


def plane(x: str, y: str, *, height: int = 220) -> Spec:
    """Points in a plane with both axes through the origin."""
    dots: Spec = {
        "mark": {"type": "point", "size": 36, "filled": True, "opacity": 0.85, "color": PALETTE[0]},
        "encoding": {"x": quantity(x), "y": quantity(y), "tooltip": [{"field": x}, {"field": y}]},
    }
    axes = [
        {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {channel: {"datum": 0}}}
        for channel in ("x", "y")
    ]
    return {"height": height, "layer": [*axes, dots]}


def paths(x: str, y: str, which: str, order: str, reach: float, *, height: int = 300) -> Spec:
    """Paths in a plane, from blue (the first of `which`) to amber, with a dot where each ends; axes reach so far."""
    rule = {"type": "rule", "strokeDash": [3, 3], "strokeWidth": 0.6, "color": paint.colour("faint")}
    axes = [{"mark": rule, "encoding": {channel: {"datum": 0}}} for channel in ("x", "y")]
    ramp = [paint.colour(name) for name in ("converges", "bounded", "not_convergent")]
    places: Spec = {
        "x": quantity(x, domain=[-reach, reach], nice=False),
        "y": quantity(y, domain=[-reach, reach], nice=False),
        "color": {"field": which, "type": "quantitative", "scale": {"range": ramp}, "legend": None},
        "detail": {"field": which},
    }
    line: Spec = {
        "mark": {"type": "line", "strokeWidth": 1},
        "encoding": {**places, "order": {"field": order, "type": "quantitative"}},
    }
    ends: Spec = {
        "transform": [
            {"joinaggregate": [{"op": "max", "field": order, "as": "last"}]},
            {"filter": f"datum['{order}'] === datum.last"},
        ],
        "mark": {"type": "point", "filled": True, "size": 26, "opacity": 1},
        "encoding": {**places, "tooltip": [{"field": which}, {"field": x}, {"field": y}]},
    }
    return {"height": height, "layer": [*axes, line, ends]}


def stacked(
    x: str, y: str, colour: str, order: Sequence[str], colours: Mapping[str, str], *, height: int = 220
) -> Spec:
    """Bars made of parts."""
    return {
        "height": height,
        "mark": {"type": "bar", "stroke": "white", "strokeWidth": 0.6},
        "encoding": {
            "x": {
                "field": x,
                "type": "ordinal",
                "axis": {"labelAngle": 0, "labelOverlap": "parity", "labelSeparation": 6},
            },
            "y": _counted(y),
            "color": coloured(colour, {name: colours.get(name, PALETTE[-1]) for name in order}),
            "tooltip": [{"field": x}, {"field": colour}, {"field": y}],
        },
    }


def bars(x: str, y: str, order: Sequence[str], *, height: int = 220) -> Spec:
    """One bar for each category, lying, with room for its name."""
    return {
        "height": height,
        "mark": {"type": "bar", "color": PALETTE[0]},
        "encoding": {
            "y": {"field": x, "type": "nominal", "sort": list(order), "title": None, "axis": {"labelLimit": 220}},
            "x": _counted(y),
            "tooltip": [{"field": x}, {"field": y}],
        },
    }


def dots_and_mean(
    x: str, y: str, *, reference: float | None = None, domain: tuple[float, float] | None = None,
    tooltip: Sequence[str] = (), height: int = 220, y_title: str | None = None,
) -> Spec:  # fmt: skip
    """A dot for each row, and the line through the means."""
    vertical = quantity(y, y_title, **({"domain": list(domain)} if domain else {"zero": False}))
    horizontal = {**quantity(x, zero=False, nice=False), "axis": {"tickMinStep": 1}}
    layers: list[Spec] = [
        {
            "mark": {"type": "point", "size": 30, "filled": True, "opacity": 0.65, "color": PALETTE[0]},
            "encoding": {"x": horizontal, "y": vertical, "tooltip": [{"field": name} for name in tooltip or (x, y)]},
        },
        {
            "mark": {"type": "line", "color": PALETTE[1]},
            "encoding": {"x": horizontal, "y": {**vertical, "aggregate": "mean"}},
        },
    ]
    if reference is not None:
        layers.insert(0, {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"y": {"datum": reference}}})
    return {"height": height, "layer": layers}


def binned(x: str, y: str, count: str, *, rows: bool = False, height: int = 240) -> Spec:
    """Counts in cells that are given by their edges `x`, `x_end` (and `y`, `y_end`, or a row for each `y`)."""
    vertical: Spec = (
        {"field": y, "type": "ordinal", "axis": {"labelOverlap": "parity", "labelSeparation": 3}}
        if rows
        else quantity(y)
    )
    edges: Spec = {} if rows else {"y2": {"field": f"{y}_end"}}
    return {
        "height": height,
        "layer": [
            {
                "mark": {"type": "rect", "color": PALETTE[0]},
                "encoding": {
                    "x": quantity(x, f"{x} part, over the head's largest", domain=[-1, 1]),
                    "x2": {"field": f"{x}_end"},
                    "y": vertical,
                    **edges,
                    "opacity": {
                        "field": count, "type": "quantitative", "legend": None,
                        "scale": {"type": "sqrt", "domainMin": 0, "range": [0.04, 1]},
                    },
                    "tooltip": [{"field": x}, {"field": y}, {"field": count}],
                },
            },
            {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"x": {"datum": 0}}},
        ],
    }  # fmt: skip


def listed(field: str, order: Sequence[str], line: int = LINE) -> tuple[Spec, int]:
    """Names one below the other, in lines of this height, and the height of all; a long one is broken."""
    lines = {name: textwrap.wrap(name, NAME) for name in order}
    deepest = max(map(len, lines.values()), default=1)
    names: Spec = {"field": field, "type": "nominal", "sort": list(order), "title": None, "axis": {"labelLimit": 260}}
    if deepest > 1:  # so that a narrow page has room for the picture
        broken = f"{json.dumps(lines)}[datum.value]"
        middle = {"expr": f"{-line / 2} * (length({broken}) - 1)"}
        names["axis"] |= {"labelExpr": broken, "labelLineHeight": line, "labelOffset": middle}
    return names, max(round(line * 1.6), line * deepest + line // 2) * len(order)


def intervals(
    y: str,
    x: str,
    low: str,
    high: str,
    *,
    order: Sequence[str],
    height: int | None = None,
    reference: float | None = 0.0,
    x_title: str | None = None,
    x_format: str | None = None,
    domain: tuple[float, float] | None = None,
) -> Spec:
    """A point with its interval for each category, against a reference line."""
    axis: Spec = {"tickCount": {"expr": "clamp(width / 60, 3, 9)"}, "titleAnchor": "end", "labelOverlap": True}
    if x_format:
        axis["format"] = x_format
    scale: Spec = {"domain": list(domain)} if domain else {"zero": False} if reference else {}
    names, rows = listed(y, order)
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": 2, "color": PALETTE[0]},
            "encoding": {
                "y": names,
                "x": {**quantity(low, x_title or x, **scale), "axis": axis},
                "x2": {"field": high},
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "color": PALETTE[0]},
            "encoding": {
                "y": names,
                "x": {**quantity(x, x_title or x, **scale), "axis": axis},
                "tooltip": [{"field": name} for name in (y, x, low, high)],
            },
        },
    ]
    if reference is not None:
        layers.insert(0, {"mark": {"type": "rule", "strokeDash": [3, 3]}, "encoding": {"x": {"datum": reference}}})
    return {"height": height or max(60, rows), "layer": layers}


def band(
    x: str, y: str, low: str, high: str, *, colour: str | None = None, height: int = 240, log_x: bool = False,
    y_domain: tuple[float, float] | None = None, x_title: str | None = None, y_title: str | None = None,
    faint: bool = False,
) -> Spec:  # fmt: skip
    """Curves with a band around each; `faint` where many would cover one another."""
    horizontal = quantity(x, x_title, **({"type": "log", "base": 2} if log_x else {"zero": False, "nice": False}))
    if x in WHOLE and not log_x:
        horizontal["axis"] = {"tickMinStep": 1}
    vertical = quantity(y, y_title, **({"domain": list(y_domain)} if y_domain else {"zero": False}))
    paint = {"color": coloured(colour)} if colour else {}
    dash = {"strokeDash": dashed(colour)} if colour else {}
    plain = {} if colour else {"color": PALETTE[0]}
    return {
        "height": height,
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.07 if faint else 0.18, **plain},
                "encoding": {"x": horizontal, "y": {**vertical, "field": low}, "y2": {"field": high}, **paint},
            },
            {
                "mark": {"type": "line", **plain},
                "encoding": {
                    "x": horizontal, "y": vertical, **paint, **dash,
                    "tooltip": [{"field": name} for name in (*((colour,) if colour else ()), x, y, low, high)],
                },
            },
        ],
    }  # fmt: skip
