"""What a view is made of: sections of words, tables, charts, maps and moving pictures, as plain data.

A view (`report/views`) turns a result into these, once; `terminal`, `page`, `notebook` and `figure` draw them and
know no result. Every picture names a table of the page, so its numbers stand in the file once and can be downloaded
from beside it. Charts, matrices and particles are for pages and figures: what a terminal must say stands in words, in
a `Listing` or a `HeadMap`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

Columns = Mapping[str, Sequence[Any]]
MOST_ROWS = 2048  # of a result that stand in a page beside the tables made of them
LONGEST_WORDS = 1000  # of one piece: longer ones are packed numbers


@dataclass(frozen=True)
class Summary:
    """What to make of it: sentences in plain words."""

    kind: ClassVar[str] = "summary"
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Paragraphs:
    """Paragraphs; `soft` ones are quieter."""

    kind: ClassVar[str] = "paragraphs"
    paragraphs: tuple[str, ...]
    soft: bool = False


@dataclass(frozen=True)
class Command:
    """A question, and the line to paste that answers it; it is never broken."""

    kind: ClassVar[str] = "command"
    question: str
    line: str


@dataclass(frozen=True)
class Facts:
    """Large numbers with a label each."""

    kind: ClassVar[str] = "facts"
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Findings:
    """Findings of `check`, those that ask for attention open, all where `explained`.

    In a terminal, passed checks are counted, but those whose id is `kept` (None: all are shown); `more` is how to see
    them.
    """

    kind: ClassVar[str] = "findings"
    items: tuple[Mapping[str, Any], ...]
    explained: bool = False
    kept: tuple[str, ...] | None = None
    more: str = ".findings"


@dataclass(frozen=True)
class Listing:
    """A table to read. `columns` maps a column of the page's table to its heading and to how its cells are shown.

    Pages show all of it. Terminals and notebooks show the first `top` rows and say what the `others` are; of columns
    those named in `brief` where all would be too wide. Without --full a terminal shows those in `answer`, if any,
    under a sentence of their own.
    """

    kind: ClassVar[str] = "listing"
    title: str
    sentence: str
    table: str
    columns: tuple[Column, ...]
    folded: bool = False  # on a page: shown only when asked for
    top: int = 12
    others: str = ""
    brief: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    answer_sentence: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a listing: which, its heading, and `text`, `wrap`, `number`, `percent`, `plain` or a format: .3f

    Numbers that are shown with their interval are text, to the right: `interval`; `by` is the column that sorts them.
    """

    key: str
    heading: str
    show: str = "number"
    by: str = ""


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart of one of the page's tables; those `in_figure` make the figure for a paper."""

    kind: ClassVar[str] = "chart"
    title: str
    sentence: str
    table: str
    spec: Mapping[str, Any]
    in_figure: bool = False


@dataclass(frozen=True)
class Measure:
    """One way to colour a map: a column, its kind (category, sequential, diverging, logarithmic) and a sentence."""

    key: str
    label: str
    kind: str
    sentence: str
    format: str = "number"
    low: float | None = None
    high: float | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    harm: bool = False  # a diverging one in which more is worse, or grows: red above the middle
    middle: float = 0.0  # the value of a diverging one that has no colour
    faded_unless: str | None = None  # a column that is true where the value is sure; the others are drawn pale

    def around(self, low: float, high: float) -> tuple[float, float]:
        """The ends of a diverging scale that holds these values: equally far from its middle."""
        reach = max(abs(low - self.middle), abs(high - self.middle))
        return self.middle - reach, self.middle + reach


@dataclass(frozen=True)
class PanelChart:
    """A chart of one head: `lists` maps fields of the chart to columns of the table whose cells are lists.

    `index` names a field that counts the entries, from the number in column `start` (or 0); of rows whose field
    `mirror` is above 0 the mirror image is shown too.
    """

    title: str
    sentence: str
    lists: Mapping[str, str]
    spec: Mapping[str, Any]
    index: str | None = None
    start: str | None = None
    mirror: str | None = None


@dataclass(frozen=True)
class HeadMap:
    """Layers down, heads across, one colour each; choosing a head shows its page beside the map.

    A terminal draws the first measure as letters (its `words`) or digits from 0 to 9.
    """

    kind: ClassVar[str] = "headmap"
    title: str
    sentence: str
    table: str
    measures: tuple[Measure, ...]
    facts: tuple[Column, ...] = ()
    charts: tuple[PanelChart, ...] = ()
    in_figure: bool = False
    mean: str | None = None  # a column whose mean over a layer's heads a terminal puts beside the letters


@dataclass(frozen=True)
class Matrix:
    """A heat map of matrices that share their axes."""

    kind: ClassVar[str] = "matrix"
    title: str
    sentence: str
    row_name: str
    column_name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    measures: tuple[Measure, ...]
    values: Mapping[str, Sequence[Sequence[float | None]]]
    square: bool = False  # cells as high as they are wide


class PackedNumbers(str):
    """Numbers in base64, for a script to unpack: they are no words, and not shortened as words are."""


@dataclass(frozen=True)
class StillAttention:
    """What of attention is shown where no script runs: one head on the first tokens, and its strongest pairs."""

    head: str
    tokens: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    pairs: tuple[str, ...]


@dataclass(frozen=True)
class Attention:
    """Attention with its tokens: windows of a text, heads on them (`report.attention` packs both).

    `others` is the command that shows a head which is not kept, written {head} there.
    """

    kind: ClassVar[str] = "attention"
    title: str
    sentence: str
    windows: tuple[Mapping[str, Any], ...]
    others: str
    still: StillAttention


@dataclass(frozen=True)
class Particles:
    """Tokens moving in a plane, with a clock to drag; beside it the largest norm over that at the start."""

    kind: ClassVar[str] = "particles"
    title: str
    sentence: str
    times: Sequence[float]
    xy: Sequence[Sequence[Sequence[float]]]
    norms: Sequence[float] = ()


@dataclass(frozen=True)
class Pairs:
    """A card with names and values."""

    kind: ClassVar[str] = "pairs"
    title: str
    items: tuple[tuple[str, str | tuple[str, ...]], ...]  # several lines where a tuple
    sentence: str = ""
    dot: str | None = None

    @property
    def long(self) -> bool:
        """Whether values are texts rather than words: a narrow screen then sets them below their names."""
        return any(not isinstance(value, str) or len(value) > 80 for _, value in self.items)


@dataclass(frozen=True)
class Row:
    """Blocks beside one another where there is room."""

    kind: ClassVar[str] = "row"
    blocks: tuple[Any, ...]


@dataclass(frozen=True)
class Section:
    """A heading with its blocks; `slug` is its address within the page. Details are for pages alone."""

    title: str
    blocks: tuple[Any, ...]
    slug: str = ""
    detail: bool = False
    full: bool = False


@dataclass
class Page:
    """A report being put together: renderers add sections, tables and the numbers for its head."""

    title: str = "Toposcope"
    line: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # what a terminal says was left out, and why

    def table(self, name: str, columns: Columns) -> str:
        """Keep a table, columns of equal length, and say under which name; of equal names the later gets a number."""
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns of table '{name}' have different lengths: {sorted(lengths)}")
        unique = address(name, self.tables)
        self.tables[unique] = {key: list(values) for key, values in columns.items()}
        return unique

    def rows(self, name: str, rows: Sequence[Mapping[str, Any]], keys: Sequence[str] | None = None) -> str:
        """Keep a table given as rows."""
        chosen = list(keys) if keys is not None else list(dict.fromkeys(key for row in rows for key in row))
        return self.table(name, {key: [row.get(key) for row in rows] for key in chosen})

    def add(self, title: str, *blocks: Any, detail: bool = False, full: bool = False) -> None:
        """Add a section, unless it would be empty.

        A `detail` is left out of terminals and notebooks, what belongs to a `full` answer only of terminals; --full
        prints both.
        """
        kept = tuple(block for block in blocks if block is not None)
        if not kept:
            return
        slug = address(title, [section.slug for section in self.sections])
        self.sections.append(Section(title, kept, slug, detail, full))


def address(title: str, taken: Collection[str]) -> str:
    """A title as an address has it: small letters, digits, dashes; of equal ones the later has a number."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
    unique, number = slug, 2
    while unique in taken:
        unique, number = f"{slug}-{number}", number + 1
    return unique


def rounded(value: Any, digits: int = 5) -> Any:
    """The same with every float to so many significant digits: what a picture needs, at a third of the size."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items()}
    return value


def without_series(value: Any, longest: int = 16) -> Any:
    """A result without its long lists of numbers and rows, and packed numbers: those stand in tables and pictures."""
    if isinstance(value, Mapping):
        return {key: without_series(each, longest) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > longest and all(not isinstance(each, Mapping | str) for each in value):
            return f"{len(value)} entries: see the tables"
        if len(value) > MOST_ROWS:
            return f"{len(value)} rows: see the tables"
        return [without_series(each, longest) for each in value]
    if isinstance(value, str) and len(value) > LONGEST_WORDS and not re.search(r"\s", value):
        return f"{len(value)} characters: see the pictures"
    return value


def count(number: int, thing: str) -> str:
    """1 head, 2 heads."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def shown(value: Any, how: str = "number") -> str:
    """A cell as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and how[:1] in (".", "+", ","):
        if value == 0 and how.endswith("e"):
            return "0"
        text = format(value, how)
        return format(0.0, how) if text.startswith("-") and not text.strip("-0.%") else text
    if isinstance(value, int | float) and how != "plain":
        if how == "percent":
            return f"{100 * value:.2f}%" if abs(value) < 0.1 else f"{100 * value:.1f}%"
        if isinstance(value, int) or value.is_integer():
            return f"{int(value):,}" if abs(value) < 1e6 else f"{value:.3g}"
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    return str(value).replace("_", " ") if how in ("text", "number") else str(value)
