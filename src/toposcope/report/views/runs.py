"""The view of a store: its runs, and how many are done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from toposcope.core.ranges import computable
from toposcope.report.blocks import Column, Listing, Page, Summary, count
from toposcope.runs.index import RunRow
from toposcope.runs.listing import RunsResult

LONGEST_ENCODING = 24


def view(result: RunsResult, page: Page) -> None:
    """Add the table of runs."""
    page.title = page.title or f"Runs in {result.store}"
    counts = Counter(row.status for row in result.runs)
    told = ", ".join(f"{counts[word]} {word}" for word in ("done", "running", "queued", "failed") if counts[word])
    page.add("Summary", Summary((f"{count(len(result.runs), 'run')}{': ' if told else ''}{told}.",)))
    if not result.runs:
        return
    long = _long_enough([row.key for row in result.runs])
    rows = [_row(row, long) for row in result.runs]
    columns = (
        Column("key", "key", "plain"), Column("task", "task", "plain"), Column("encoding", "encoding", "plain"),
        Column("seed", "seed", "plain"), Column("profile", "profile", "plain"), Column("state", "state", "plain"),
        Column("accuracy", "accuracy", "percent"),
    )  # fmt: skip
    page.add("Runs", Listing("Runs", "", page.rows("runs", rows), columns, top=1000))


def _row(row: RunRow, long: int) -> dict[str, Any]:
    told = {name: str(row.config.get(name, ""))[:40] for name in ("task", "encoding", "seed", "profile")}
    encoding = told["encoding"]
    if len(encoding) > LONGEST_ENCODING:
        told["encoding"] = f"{encoding[: LONGEST_ENCODING - 1]}…"
    seen = (row.summary or {}).get("accuracy")
    accuracy = seen if isinstance(seen, int | float) and computable(seen) else None
    return {"key": row.key[:long], **told, "state": row.status, "accuracy": accuracy}


def _long_enough(keys: Sequence[str]) -> int:
    """How much of a key tells all of them apart."""
    return next((n for n in range(8, 17) if len({key[:n] for key in keys}) == len(keys)), 16)
