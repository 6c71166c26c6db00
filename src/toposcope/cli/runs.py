"""`toposcope runs ls|show|rm|export`: what a store of runs holds."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import JsonOption, console, safe
from toposcope.cli.lab_words import REMOVE_RESULT, StoreOption, cut, duration, percent, title
from toposcope.cli.stored import from_disk
from toposcope.core.printable import LONGEST_PATH, LONGEST_TEXT, sentences

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from toposcope.runs.index import Row
    from toposcope.runs.store import Store


class Action(StrEnum):
    ls = "ls"
    show = "show"
    rm = "rm"
    export = "export"


def run(
    action: Annotated[Action, typer.Argument(help="ls; show KEY; rm KEY...; export FILE.")] = Action.ls,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="KEY|FILE", help="Keys may be shortened.", show_default=False)
    ] = None,
    store: StoreOption = "runs",
    status: Annotated[
        str | None, typer.Option("--status", metavar="WORD", help="Only queued, running, done or failed ones.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    json: JsonOption = None,
) -> None:
    """List, show, remove or export (.csv or .json) the runs of train and sweep."""
    from pathlib import Path

    from toposcope.runs.index import chosen
    from toposcope.runs.listing import listing

    given, place = names or [], Path(store)
    if action is Action.rm:
        _need(bool(given), "rm takes the keys of the runs to remove: 'toposcope runs rm 1f3a 77b0'")
        return _remove(place, given, yes)
    found = listing(place)
    rows = _of_status(found, status)
    if action is Action.ls:
        _need(not given, "ls takes no names; 'toposcope runs show KEY' shows one run")
        _list(rows, store, json)
    elif action is Action.show:
        _need(len(given) == 1, "show takes one key, or its beginning: 'toposcope runs show 1f3a'")
        _show(place, chosen(found, given[0], place), json)
    else:
        _need(len(given) == 1, "export takes the name of a file: 'toposcope runs export runs.csv'")
        _export(rows, given[0], store)
    return None


def _need(fine: bool, sentence: str) -> None:
    from toposcope.core.errors import BadValue

    if not fine:
        raise BadValue(f"{sentence}.")


def _of_status(rows: list[Row], status: str | None) -> list[Row]:
    from toposcope.core.errors import BadValue, did_you_mean

    known = ("queued", "running", "done", "failed")
    if status is not None and status not in known:
        raise BadValue(f"'{status}' is no state of a run. {did_you_mean(status, known)}")
    return [row for row in rows if status in (None, row.status)]


def _list(rows: Sequence[Row], store: str, json: str | None) -> None:
    if json:
        from toposcope.core.results import emit_json, envelope

        emit_json(envelope("runs", {"runs": rows}, about=None, options={"store": store}, seconds=0.0), json)
    if json == "-":
        return
    from collections import Counter

    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("key", "task", "encoding", "seed", "profile", "state", "accuracy"):
        shown.add_column(column, no_wrap=True, justify="right" if column in ("seed", "accuracy") else "left")
    long = _long_enough([row.key for row in rows])
    for row in rows:
        config = row.config
        words = [safe(config.get(name, ""), 40) for name in ("task", "encoding", "seed", "profile")]
        shown.add_row(row.key[:long], words[0], cut(words[1], 24), *words[2:], row.status, percent(_accuracy(row)))
    out = console()
    if rows:
        out.print(shown)
    counts = Counter(row.status for row in rows)
    told = ", ".join(f"{counts[word]} {word}" for word in ("done", "running", "queued", "failed") if counts[word])
    out.print(f"{len(rows)} runs in {safe(store, LONGEST_PATH)}{': ' if told else ''}{told}", soft_wrap=True)


def _long_enough(keys: Sequence[str]) -> int:
    """How much of a key tells all of them apart."""
    return next((n for n in range(8, 17) if len({key[:n] for key in keys}) == len(keys)), 16)


def _accuracy(row: Row) -> float | None:
    return (row.summary or {}).get("accuracy")


def _show(store: Path, row: Row, json: str | None) -> None:
    from toposcope.core.results import emit_json, envelope
    from toposcope.runs.directory import read_result

    directory = store / row.key
    result = read_result(directory, row.job) if row.status == "done" else None
    if json:
        body = {"run": row, "result": result}
        emit_json(envelope("run", body, about={"path": str(directory)}, options={}, seconds=0.0), json)
    if json == "-":
        return
    out = console()
    out.print(f"[bold]{safe(title(row.config))}[/bold]", soft_wrap=True)
    out.print(f"{'run':10s} {safe(row.key)} in {safe(directory, LONGEST_PATH)}", soft_wrap=True)
    out.print(
        f"{'state':10s} {row.status}{f', by process {row.owner}, last heard of {row.heartbeat}' if row.owner else ''}"
    )
    with from_disk(directory, REMOVE_RESULT):
        lines = _lines(row)
    for name, value in lines:
        out.print(f"{name:10s} {safe(value, LONGEST_TEXT)}", soft_wrap=True)
    if row.words:
        out.print("[bold]last words[/bold]")
        out.print(sentences(row.words), soft_wrap=True, markup=False)


def _lines(row: Row) -> list[tuple[str, str]]:
    usual = {"task", "encoding", "seed"}
    given = {name: value for name, value in row.config.items() if name not in usual and value not in (None, [], ())}
    found = row.summary or {}
    lines = [("settings", ", ".join(f"{name} {value}" for name, value in given.items()))]
    if "bits_held" in found:
        both = f"{found['bits_held']:.3f} on held-out text, {found['bits_other']:.3f} on other text"
        lines += [("bits", f"{both}, per byte"), ("work", f"{found['steps']} steps in {duration(found['seconds'])}")]
    elif "accuracy" in found:
        bounds = f"floor {percent(found.get('floor'))}, ceiling {percent(found.get('ceiling'))}"
        lines.append(("accuracy", f"{percent(found['accuracy'])} ({bounds})"))
        lines.append(("work", f"{found.get('steps')} steps in {duration(found.get('seconds'))}"))
    times = (("created", row.created), ("started", row.started), ("finished", row.finished))
    return [*lines, *((name, when) for name, when in times if when), ("version", row.toposcope)]


def _remove(store: Path, names: Sequence[str], yes: bool) -> None:
    from toposcope.runs.store import Store

    with Store(store, create=False) as opened:
        opened.repair()
        rows = [opened.find(name) for name in names]
        _remove_rows(opened, list({row.key: row for row in rows}.values()), yes)


def _remove_rows(store: Store, unique: Sequence[Row], yes: bool) -> None:
    from toposcope.core.errors import BadValue

    out = console()
    if not yes:
        for row in unique:
            out.print(f"{row.key}  {row.status:8s} {safe(title(row.config))}", soft_wrap=True)
        if not sys.stdin.isatty():
            raise BadValue("removing runs needs a yes, and there is nobody to ask here. Add --yes.")
        if not typer.confirm(f"Remove {len(unique)} run{'s' * (len(unique) > 1)} for good?"):
            raise typer.Exit(1)
    for row in unique:
        store.remove(row.key)
        out.print(f"removed {row.key}  {safe(title(row.config))}", soft_wrap=True)


def _export(rows: Sequence[Row], where: str, store: str) -> None:
    from toposcope.core.errors import BadValue
    from toposcope.core.results import emit_csv, emit_json, envelope

    started = time.perf_counter()
    if where.endswith(".csv"):
        flat = [_flat(row) for row in rows]
        names = list(dict.fromkeys(name for line in flat for name in line))
        emit_csv([{name: line.get(name) for name in names} for line in flat], where)
    elif where == "-" or where.endswith(".json"):
        took = time.perf_counter() - started
        emit_json(envelope("runs", {"runs": rows}, about=None, options={"store": store}, seconds=took), where)
    else:
        raise BadValue(
            f"'{where}' says not how to write the runs. End it in .csv or .json; '-' is JSON on the output."
        )
    if where != "-":
        console().print(f"{len(rows)} runs written to {where}", soft_wrap=True)


def _flat(row: Row) -> dict[str, Any]:
    """A row for CSV: configuration and summary as columns, lists as JSON."""
    import json

    config = {
        name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.config.items()
    }
    found = {name: value for name, value in (row.summary or {}).items() if name not in ("key", "schema", "toposcope")}
    ends = {"created": row.created, "started": row.started, "finished": row.finished, "words": row.words}
    return {
        "key": row.key,
        "kind": row.kind,
        "status": row.status,
        **config,
        **found,
        **ends,
        "toposcope": row.toposcope,
    }
