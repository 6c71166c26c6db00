"""One self-contained HTML file from a page of blocks: styles, scripts, data, and a policy that allows no more.

Nothing is fetched, `eval` is not allowed, and only the scripts and styles written here run: the page's own
Content-Security-Policy names each by its SHA-256, taken from the files we ship. Text from a checkpoint is escaped by
the template, and the data is JSON in which no character can end its script element.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from toposcope._version import __version__
from toposcope.core.errors import BadFile
from toposcope.core.printable import sentences
from toposcope.core.result import json_text
from toposcope.report.blocks import (
    Attention,
    Chart,
    HeadMap,
    Matrix,
    PackedNumbers,
    Page,
    Particles,
    Row,
    address,
    rounded,
    shown,
    without_series,
)
from toposcope.report.python_line import python_line

CHARTS = ("vendor/vega.min.js", "vendor/vega-lite.min.js", "vendor/vega-embed.min.js", "chart.js")
SCRIPTS = ("core.js", "heatmap.js", "attention.js", "particles.js", *CHARTS, "report.js")
STYLE = "toposcope.css"
LONGEST_PARAGRAPH = 100_000
MOST_ROWS = 1000  # of a table that is read; its data hold all
_TOGETHER = re.compile(
    r"(?<=\d) (?=%)|(?<=\bThm) (?=\d)|(?<=\bV) (?=O\b)|(?<=\bO) (?=V\b)"
)  # spaces that do not break
_WHOLE = re.compile(r"(?<![\w-])--[a-z][a-z-]*|\d(?:\.\d+)?e-\d+")
_UNSAFE: dict[str, str | int | None] = {each: f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}


def page_html(page: Page, results: Sequence[Mapping[str, Any]]) -> str:
    """The file's text; `results` stand in it too, to five digits and with their long series left to the tables."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    blocks: dict[str, Any] = {}
    taken = {section.slug for section in page.sections}
    numbered = [_numbered(section.blocks, section.slug, blocks, taken) for section in page.sections]
    kept = [rounded(without_series(each)) for each in results]
    lines = list(filter(None, map(python_line, results)))
    tables, packed = _packed(rounded(page.tables))
    seen = {"blocks": _seen(blocks), "tables": _seen(tables), "packed": _seen(packed), "python": _seen(lines)}
    data = embeddable({**seen, "results": kept})
    charts = any(each["kind"] == "chart" or each.get("charts") for each in blocks.values())
    kinds = {each["kind"] for each in blocks.values()}
    left = (() if charts else CHARTS) + (() if "attention" in kinds else ("attention.js",))
    scripts = [asset(name) for name in SCRIPTS if name not in left]
    style = asset(STYLE)
    environment = Environment(
        loader=PackageLoader("toposcope.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_typeset,
    )  # fmt: skip
    environment.filters |= {"shown": shown, "prose": _prose}
    text = environment.get_template("page.html.j2").render(
        title=page.title,
        line=page.line,
        facts=page.facts,
        sections=list(zip(page.sections, numbered, strict=True)),
        tables=page.tables,
        origins=_origins(results),
        version=__version__,
        policy=policy(scripts, [style]),
        style=style,
        scripts=scripts,
        drawn=charts,
        data=data,
        most_rows=MOST_ROWS,
    )
    if _script_tags(text) != 1 + len(scripts) + sum(map(_script_tags, (*scripts, style))):
        raise BadFile("a word of this result became code in its page, so there is no page. Please report it.")
    return text


def _origins(results: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """Results with how often what is told of their origin is the same, as it is of many training runs."""
    known: dict[str, list[Any]] = {}
    for result in results:
        told = {key: result.get(key) for key in ("schema", "subjects", "options", "seconds", "toposcope", "skipped")}
        known.setdefault(json_text(told), [result, 0])[1] += 1
    return [(result, times) for result, times in known.values()]


def _script_tags(text: str) -> int:
    return text.lower().count("<script")


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """A Content-Security-Policy under which these inline scripts and styles run, and nothing else."""
    allowed = [" ".join(f"'sha256-{_digest(text)}'" for text in texts) for texts in (scripts, styles)]
    return (
        f"default-src 'none'; script-src {allowed[0]}; style-src {allowed[1]}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


@cache
def asset(name: str) -> str:
    """A file of `assets/` as text that can stand inside its element; the work of others with its licence on top."""
    folder = resources.files("toposcope.report").joinpath("assets")
    text = folder.joinpath(name).read_text(encoding="utf-8")
    if name.startswith("vendor/"):
        licence = folder.joinpath(name.replace(".min.js", ".LICENSE")).read_text(encoding="utf-8")
        text = f"/*! {licence}*/\n{text}"
    return text.replace("</script", "<\\/script").replace("</style", "<\\/style")


def embeddable(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json_text(value, separators=(",", ":")).translate(str.maketrans(_UNSAFE))


def readable(value: Any) -> Any:
    """What a template puts into a page: words from elsewhere as text that is seen, and not without end."""
    return sentences(value, most=LONGEST_PARAGRAPH) if type(value) is str else value


def _typeset(value: Any) -> Any:
    """The same, with a number and its %, the number of a theorem, and a product of matrices in one line."""
    seen = readable(value)
    return _TOGETHER.sub("\u00a0", seen) if type(seen) is str else seen


def _prose(value: str) -> str:
    """A sentence in which options (--text) and small numbers (4e-16) are not broken at their hyphens."""
    from markupsafe import Markup, escape

    return Markup(_WHOLE.sub(r'<span class="whole">\g<0></span>', str(escape(_typeset(value)))))


def for_scripts(value: Any) -> Any:
    """Data as scripts are given them: numbers as exact as a picture needs, words from elsewhere as text."""
    return _seen(rounded(value))


def _seen(value: Any) -> Any:
    """The same for the words that scripts put into a page."""
    if isinstance(value, Mapping):
        return {readable(key): _seen(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_seen(each) for each in value]
    return (
        str(value) if isinstance(value, PackedNumbers) else readable(value)
    )  # a notebook may write out plain strings only


def _packed(tables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Tables in which thousands of series of numbers are shares of their largest, in 16 bits; and in which columns.

    A model of 80 x 64 heads has five series a head: as text they would be most of its page.
    """
    made: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    for table, columns in tables.items():
        many = [name for name, cells in columns.items() if len(cells) > MOST_ROWS]
        names[table] = [name for name in many if all(map(_series, columns[name]))]
        made[table] = {
            name: [_shares(each) for each in cells] if name in names[table] else cells
            for name, cells in columns.items()
        }
    return made, {table: found for table, found in names.items() if found}


def _series(cell: Any) -> bool:
    numbers = isinstance(cell, list) and len(cell) > 8 and all(isinstance(each, float | int) for each in cell)
    return numbers and max(map(abs, cell)) < 1e38  # beyond it float32 ends


def _shares(values: Sequence[float]) -> PackedNumbers:
    """The largest as float32 and the rest as shares of it in 1/32767, all in base64; `report.js` has the way back."""
    largest = np.float32(max(map(abs, values))) or np.float32(1)
    shares = np.rint(np.asarray(values, dtype=float) / float(largest) * 32767).clip(-32767, 32767)
    content = largest.astype("<f4").tobytes() + shares.astype("<i2").tobytes()
    return PackedNumbers(base64.b64encode(content).decode("ascii"))


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _numbered(
    blocks: Sequence[Any], prefix: str, into: dict[str, Any], taken: set[str]
) -> list[tuple[str, Any, Any]]:
    """Each block with an address of its own and, for a group, its parts; what scripts need goes to `into`.

    The address of a picture or a table is its title, so that it stays the same when others are added.
    """
    found = []
    for i, block in enumerate(blocks):
        title = getattr(block, "title", "")
        name = address(f"chart-{title}" if title else f"{prefix}-{i}", taken)
        taken.add(name)
        if isinstance(block, Attention | Chart | HeadMap | Matrix | Particles):
            into[name] = {"kind": block.kind, **rounded(asdict(block))}
        parts = _numbered(block.blocks, name, into, taken) if isinstance(block, Row) else None
        found.append((name, block, parts))
    return found
