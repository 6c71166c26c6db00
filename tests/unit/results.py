"""What every result must be able to do, whatever verb made it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

import toposcope
from toposcope.core.result import Result
from toposcope.report.kinds import document


def holds(result: Result, place: Path, *, figure: bool = False) -> dict[str, Any]:
    """Print, save, read back, frame and draw a result; give what was saved."""
    for line in str(result).splitlines():
        assert len(line) <= 80 or line.strip().startswith("toposcope ")  # a command to paste is not broken
    saved: dict[str, Any] = json.loads(result.save(place / "result.json").read_text())
    assert toposcope.read(place / "result.json") == result
    jsonschema.Draft202012Validator(document(result.kind)).validate(saved)
    for table, columns in result.tables().items():
        rows = result.rows(table)
        assert len(result.frame(table)) == len(rows)
        assert result.csv(table=table).splitlines()[0].split(",")[0] == (list(rows[0]) if rows else columns)[0]
    assert "<html" in result.html(place / "result.html")[:2000]
    shown = result._repr_html_()
    assert shown.strip().startswith("<div")
    assert "<script" not in shown
    if figure:
        assert result.figure(place / "result.svg").read_text().startswith("<svg")
    return saved
