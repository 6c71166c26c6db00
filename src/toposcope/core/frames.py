"""Results as pandas or polars tables, whichever is installed: one row per head, or per finding, run, layer.

A result is what `--json` writes (a file, or its content), or the object a function of the library gives back.
Objects inside a row become columns with dotted names ("symU.min"); lists stay lists.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal

from toposcope.core.errors import BadFile, BadValue, MissingExtra, did_you_mean
from toposcope.core.results import plain
from toposcope.core.untrusted import read_saved

Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")


def frame(result: Any, table: str | None = None, *, library: Library | None = None) -> Any:
    """A table of the result as a DataFrame: `table` by name; by default "heads", or else the first there is.

    `library` is "pandas" or "polars"; by default the first of them that is installed.
    """
    rows = _tables(result)
    if not rows:
        raise BadValue("the result holds no table: no list of heads, runs, findings or the like.")
    name = table or ("heads" if "heads" in rows else next(iter(rows)))
    if name not in rows:
        raise BadValue(f"the result holds no table '{name}'. {did_you_mean(name, rows)}")
    flat = [_flat(row) for row in rows[name]]
    columns = list(dict.fromkeys(column for row in flat for column in row))
    complete = [{column: row.get(column) for column in columns} for row in flat]
    chosen = _library(library)
    if chosen == "polars":
        return importlib.import_module("polars").DataFrame(complete, infer_schema_length=None, strict=False)
    return importlib.import_module("pandas").DataFrame(complete, columns=columns)


def tables(result: Any) -> tuple[str, ...]:
    """The names of the tables that a result holds."""
    return tuple(_tables(result))


def _tables(result: Any) -> dict[str, list[Mapping[str, Any]]]:
    data = _read(result) if isinstance(result, str | Path) else _plain(result)
    return {
        name: rows
        for name, rows in data.items()
        if name != "skipped" and isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows)
    }


def _read(path: str | Path) -> Mapping[str, Any]:
    data = read_saved(path)
    if not isinstance(data, Mapping):
        raise BadFile(f"{path} holds a {type(data).__name__}, not one result. A result is written with --json FILE.")
    return data


def _plain(result: Any) -> Mapping[str, Any]:
    if hasattr(result, "as_dict"):
        result = result.as_dict()
    if isinstance(result, Mapping) or (is_dataclass(result) and not isinstance(result, type)):
        found: Mapping[str, Any] = plain(result)
        return found
    raise BadValue(
        f"a {type(result).__name__} is no result. Give a result of Toposcope, or the file that --json wrote."
    )


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _library(asked: Library | None) -> Library:
    if asked is not None and asked not in LIBRARIES:
        raise BadValue(f"'{asked}' makes no tables here. {did_you_mean(asked, LIBRARIES)}")
    for name in LIBRARIES if asked is None else (asked,):
        if importlib.util.find_spec(name) is not None:
            return name
    raise MissingExtra(f"tables need {asked or 'pandas or polars'}: pip install {asked or 'pandas'}.")
