"""What every result carries, and how it reaches a file or standard output."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toposcope._version import __version__
from toposcope.checkpoints.view import Model
from toposcope.core.files import write_text
from toposcope.core.printable import is_unseen, visible

# A list of numbers as json.dumps indents it; a text in JSON holds no line break, so it cannot be mistaken for one.
_NUMBERS = re.compile(r"\[\n((?:\s+(?:-?\d[\d.e+-]*|null),?\n)+)\s*\]")


def subject(model: Model) -> dict[str, Any]:
    """What was analysed: where it is, what was read of it, and how position is encoded there."""
    return {
        "path": str(model.path),
        "format": model.source.format,
        "family": model.family,
        "sha256": model.source.digest(),
        "encodings": sorted({layer.encoding.title for layer in model.layers}),
    }


def envelope(
    command: str,
    body: Mapping[str, Any],
    *,
    about: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    seconds: float,
    skipped: Iterable[Any] = (),
) -> dict[str, Any]:
    """A result as plain data: schema, version, what was analysed, options, timing, what was skipped, and the body."""
    return {
        "schema": f"toposcope/{command}/1",
        "toposcope": __version__,
        "subject": dict(about) if about is not None else None,
        "options": dict(options),
        "seconds": round(seconds, 3),
        "skipped": [plain(entry) for entry in skipped],
        **{key: plain(value) for key, value in body.items()},
    }


def plain(value: Any) -> Any:
    """Data that JSON can hold: arrays become lists, paths strings, and numbers that are not finite become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def emit_json(result: Mapping[str, Any] | Sequence[Mapping[str, Any]], where: str) -> None:
    """Write the result (or several) to a file, or to standard output when `where` is '-'."""
    text = _NUMBERS.sub(_on_one_line, json_text(result, indent=2)) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        write_text(Path(where), text)


def json_text(value: Any, **options: Any) -> str:
    """JSON in which letters stay letters, and characters that a reader would not see are written as escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    if text.isascii():
        return text
    return "".join(json.dumps(each)[1:-1] if not each.isascii() and is_unseen(each) else each for each in text)


def _on_one_line(found: re.Match[str]) -> str:
    return "[" + ", ".join(found[1].split(",")).replace("\n", "").replace("  ", "") + "]"


def emit_csv(rows: Sequence[Mapping[str, Any]], where: str, columns: Iterable[str] = ()) -> None:
    """Write rows as comma-separated values to a file, or to standard output when `where` is '-'.

    `columns` are named at the top also where there are no rows. A cell of words that a spreadsheet would take for a
    formula begins with an apostrophe; numbers stay as they are.
    """
    out = io.StringIO()
    names = list(rows[0] if rows else columns)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    if where == "-":
        sys.stdout.write(out.getvalue())
    else:
        write_text(Path(where), out.getvalue())


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
