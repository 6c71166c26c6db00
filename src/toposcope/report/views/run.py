"""The view of one run: what it is, in which state, and what it said last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toposcope.report.blocks import Page, Pairs, Paragraphs, shown
from toposcope.runs.index import RunRow
from toposcope.runs.listing import RunResult
from toposcope.runs.words import duration, percent, title


def view(result: RunResult, page: Page) -> None:
    """Add the facts of a run."""
    row = result.run
    page.title = page.title or f"Training run: {title(row.config)}"
    state = row.status
    if row.owner:
        state += f", by process {row.owner}, last heard of {row.heartbeat}"
    items = [("run", f"{row.key} in {result.directory}"), ("state", state), *_items(row)]
    page.add("Run", Pairs(title(row.config), tuple(items)))
    if row.words:
        page.add("Last words", Paragraphs((row.words,)))


def _items(row: RunRow) -> list[tuple[str, str]]:
    usual = {"task", "encoding", "seed"}
    given = {name: value for name, value in row.config.items() if name not in usual and value not in (None, [], ())}
    found: Mapping[str, Any] = row.summary or {}
    items = [("settings", ", ".join(f"{name} {value}" for name, value in given.items()))]
    work = f"{found.get('steps')} steps in {duration(found.get('seconds'))}"
    if "bits_held" in found:
        held, other = (shown(found.get(name), ".3f") for name in ("bits_held", "bits_other"))
        both = f"{held} on held-out text, {other} on other text"
        items += [("bits", f"{both}, per byte"), ("work", work)]
    elif "accuracy" in found:
        bounds = f"floor {percent(found.get('floor'))}, ceiling {percent(found.get('ceiling'))}"
        items += [("accuracy", f"{percent(found['accuracy'])} ({bounds})"), ("work", work)]
    times = (("created", row.created), ("started", row.started), ("finished", row.finished))
    return [*items, *((name, when) for name, when in times if when), ("version", row.toposcope)]
