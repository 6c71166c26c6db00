"""What every verb returns: a frozen dataclass with its provenance, that saves, frames and draws itself.

result.save("scan.json")        JSON: the fields, one to one; toposcope.read gives the result back
result.frame("heads")           pandas or polars; result.csv("heads.csv") has the same columns
result.html("scan.html")        one self-contained page
result.figure("scan.pdf")       for a paper: .pdf, .svg or .png
result.widget()                 heads to play with in a notebook
print(result)                   as the command prints it; a notebook shows it by itself
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from toposcope._version import __version__
from toposcope.core.drawing import drawing
from toposcope.core.errors import BadFile, BadValue, MissingExtra, did_you_mean
from toposcope.core.fields import fields_of, plain, rebuilt
from toposcope.core.files import write_text
from toposcope.core.printable import is_unseen, printable, visible

Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")
# A list of numbers as json.dumps indents it; a text in JSON holds no line break, so it cannot be mistaken for one.
_NUMBERS = re.compile(r"\[\n((?:\s+(?:-?\d[\d.e+-]*|null),?\n)+)\s*\]")


@dataclass(frozen=True)
class Skipped:
    """A part of a checkpoint that is not analysed, and why."""

    what: str
    why: str
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """What was analysed: what it is called, where it is, its format and family, and a hash of what was read of it.

    The hash is empty where no tensor was read. `adapter` is where the adapter lies that was merged into it; `remarks`
    are on how it was opened; `commit` is the version of a model on the hub.
    """

    name: str
    path: str
    format: str
    family: str
    sha256: str
    encodings: tuple[str, ...] = ()
    adapter: str | None = None
    remarks: tuple[str, ...] = ()
    commit: str | None = None


@dataclass(frozen=True)
class Computation:
    """Where and in which numbers a model was run: devices, precision of its weights, attention kernel.

    `repeatable`: the same call on the same device gives the same bits; `why_not` says where that is not so.
    `rounding` is what the precision costs, measured on one sequence that was run again in float32: in `rounding_of`.
    It is None for models that run in float32 or better, and where `why_unknown` says that it could not be measured.
    """

    device: str
    dtype: str
    attention: str | None
    repeatable: bool = True
    why_not: str | None = None
    rounding: float | None = None
    rounding_of: str | None = None
    why_unknown: str | None = None


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from: the version, what was analysed, what was asked for, how long it took, where it ran.

    `ran` is None for what runs no model.
    """

    subjects: tuple[Subject, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    toposcope: str = __version__
    ran: Computation | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """The base of all results. `kind` names the verb, and with `version` the schema of its file."""

    kind: ClassVar[str]
    version: ClassVar[int] = 2
    table: ClassVar[str | None] = None  # the field that `frame` and `csv` take by default: a sequence of dataclasses

    provenance: Provenance = Provenance()
    skipped: tuple[Skipped, ...] = ()

    @classmethod
    def schema_name(cls) -> str:
        """toposcope/scan/2"""
        return f"toposcope/{cls.kind}/{cls.version}"

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain data, under the name of their schema."""
        return {"schema": self.schema_name(), **plain(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "the result") -> Self:
        """The result of which `as_dict` gave these data; a `BadFile` says where they are not."""
        if data.get("schema") != cls.schema_name():
            found = printable(data.get("schema"), 60)
            raise BadFile(f"{where} has the schema '{found}', expected '{cls.schema_name()}'.")
        return rebuilt(cls, {name: value for name, value in data.items() if name != "schema"}, where)

    def json(self) -> str:
        """What `save` writes."""
        return json_text(self.as_dict(), indent=2)

    def save(self, path: str | Path) -> Path:
        """Write the fields as JSON; `toposcope.read` gives the result back."""
        return write_text(path, self.json())

    def tables(self) -> dict[str, tuple[str, ...]]:
        """The fields that are tables, and the columns of each."""
        return {name: tuple(_columns(row)) for name, row in _table_rows(type(self)).items()}

    def rows(self, table: str | None = None) -> list[dict[str, Any]]:
        """A table as flat rows: objects inside become columns with dotted names ("symU.min"), lists stay lists.

        Tables inside a row are tables of their own ("conditions.bins"): each of their rows begins with the words and
        whole numbers of the row it stands in.
        """
        name, _, inner = self._table(table).partition(".")
        flat = []
        for row in getattr(self, name) or ():
            outer = _flat(row)
            if inner:
                keys = {key: value for key, value in outer.items() if isinstance(value, str | int)}
                flat += [{**keys, **_flat(each)} for each in getattr(row, inner) or ()]
            else:
                flat.append(outer)
        columns = list(dict.fromkeys(column for row in flat for column in row))
        return [{column: row.get(column) for column in columns} for row in flat]

    def _table(self, asked: str | None) -> str:
        known = tuple(_table_rows(type(self)))
        if not known:
            raise BadValue(f"a result of '{self.kind}' holds no table.")
        name = asked or self.table or known[0]
        if name not in known:
            raise BadValue(f"a result of '{self.kind}' holds no table '{name}'. {did_you_mean(name, known)}")
        return name

    def frame(self, table: str | None = None, *, library: Library | None = None) -> Any:
        """A table as a DataFrame of pandas or polars: the one asked for, or the first that is installed."""
        chosen = _library(library)
        rows = self.rows(table)
        if chosen == "polars":
            return importlib.import_module("polars").DataFrame(rows, infer_schema_length=None, strict=False)
        return importlib.import_module("pandas").DataFrame(rows, columns=list(rows[0]) if rows else None)

    def csv(self, path: str | Path | None = None, table: str | None = None) -> str:
        """A table as comma-separated values, written to `path` if one is given."""
        rows = self.rows(table)
        text = csv_text(rows, list(rows[0]) if rows else self.tables()[self._table(table)])
        if path is not None:
            write_text(path, text)
        return text

    def html(self, path: str | Path | None = None, *, title: str | None = None) -> str:
        """One self-contained page, written to `path` if one is given."""
        text = drawing().page([self], title)
        if path is not None:
            write_text(path, text)
        return text

    def figure(self, path: str | Path) -> Path:
        """A figure for a paper: .pdf, .svg or .png (needs the [plot] extra)."""
        return drawing().draw(self, path)

    def widget(self) -> Any:
        """The head map, and a trace's attention with its tokens, to play with in a notebook ([notebook] extra)."""
        return drawing().widget(self)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]  # not one of all fields, which a dataclass writes

    def __repr__(self) -> str:
        of = " and ".join(each.name for each in self.provenance.subjects)
        rows = getattr(self, self.table or "", None)
        parts = [f"of {of}"] if of else []
        if isinstance(rows, Sequence):
            parts.append(f"{len(rows)} {self.table}")
        return f"<{' '.join([type(self).__name__, ', '.join(parts)]).strip()}; print() shows it>"

    def __str__(self) -> str:
        return drawing().text(self)

    def _repr_html_(self) -> str:
        return drawing().fragment(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and plain(self) == plain(other)

    __hash__ = None  # type: ignore[assignment]


def json_text(value: Any, **options: Any) -> str:
    """JSON in which letters stay letters, and characters that a reader would not see are written as escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    if not text.isascii():
        text = "".join(json.dumps(each)[1:-1] if not each.isascii() and is_unseen(each) else each for each in text)
    return _NUMBERS.sub(_on_one_line, text) + "\n" if options.get("indent") else text


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as comma-separated values, the columns named at the top also where there are no rows.

    A cell of words that a spreadsheet would take for a formula begins with an apostrophe; numbers stay as they are.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return out.getvalue()


def _on_one_line(found: re.Match[str]) -> str:
    return "[" + ", ".join(found[1].split(",")).replace("\n", "").replace("  ", "") + "]"


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | np.number):
        return value
    text = visible(str(value), keep="\n")
    if not text.lstrip().startswith(("=", "+", "-", "@")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _table_rows(kind: type[Result]) -> dict[str, type]:
    """The fields of a result that hold dataclasses in sequence, those inside their rows too, and the rows' class."""
    found = {name: row for name, row in _sequences(typing.cast(type, kind)) if name != "skipped"}
    inside = {f"{name}.{inner}": row for name, outer in found.items() for inner, row in _sequences(outer)}
    return {**found, **inside}


def _sequences(kind: type) -> Iterator[tuple[str, type]]:
    for name, annotated in fields_of(kind).items():
        row = _row_class(annotated)
        if row is not None:
            yield name, row


def _row_class(annotated: Any) -> type | None:
    """The dataclass of the rows, where a field is a sequence of dataclasses or None."""
    for each in (annotated, *typing.get_args(annotated)):
        parts = typing.get_args(each)
        if typing.get_origin(each) in (tuple, list) and parts and is_dataclass(parts[0]):
            return typing.cast(type, parts[0])
    return None


def _columns(row: type, prefix: str = "") -> Iterator[str]:
    """The columns that a row of this class is flattened to, as far as its annotations tell."""
    for name, annotated in fields_of(row).items():
        inner = [each for each in (annotated, *typing.get_args(annotated)) if is_dataclass(each)]
        if _row_class(annotated) is not None:
            continue
        if inner:
            yield from _columns(typing.cast(type, inner[0]), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _flat(row: Any) -> dict[str, Any]:
    """A row without its tables, flattened."""
    kind: Any = type(row)
    columns = dict.fromkeys(name for name in _columns(kind) if not isinstance(getattr(row, name, None), Mapping))
    inner = {name for name, _ in _sequences(kind)}
    found = _dotted({name: plain(getattr(row, name)) for name in fields_of(kind) if name not in inner})
    missing = {name for name in found if name not in columns and found[name] is None}  # an object that is not there
    return columns | {name: value for name, value in found.items() if name not in missing}


def _dotted(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= _dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _library(asked: Library | None) -> Library:
    if asked is not None and asked not in LIBRARIES:
        raise BadValue(f"'{asked}' makes no tables here. {did_you_mean(asked, LIBRARIES)}")
    for name in LIBRARIES if asked is None else (asked,):
        if importlib.util.find_spec(name) is not None:
            return name
    raise MissingExtra(f"tables need {asked or 'pandas or polars'}: pip install {asked or 'pandas'}.")
