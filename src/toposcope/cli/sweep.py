"""`toposcope sweep`: tasks x encodings x seeds, on the cores of this machine or on a Ray cluster."""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import CsvOption, HtmlOption, JsonOption, console, safe
from toposcope.cli.lab_words import (
    REMOVE_RESULT,
    ProfileOption,
    QuirkOption,
    SetOption,
    StoreOption,
    ThreadsOption,
    VariantOption,
    changes,
    duration,
    title,
)
from toposcope.cli.stored import from_disk
from toposcope.cli.sweep_watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from toposcope.lab.config import RunConfig
    from toposcope.runs.store import Row, Store
    from toposcope.runs.table import Cell

ABREAST = 3  # tasks beside each other in the table, so that it fits in 80 columns


class Engine(StrEnum):
    local = "local"
    ray = "ray"


def run(
    tasks: Annotated[
        list[str], typer.Option("--tasks", metavar="A,B", help="distance, count, previous, copy, reverse, ...")
    ],
    encodings: Annotated[
        list[str], typer.Option("--encodings", metavar="A,B", help="rope,none,...; use ';' where in doubt.")
    ],
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N|LIST", help="How many (5: 0 to 4), or which: 0-4,7.")
    ] = "3",
    profile: ProfileOption = "laptop-s",
    variant: VariantOption = "described",
    quirk: QuirkOption = None,
    settings: SetOption = None,
    engine: Annotated[Engine, typer.Option("--engine", help="Where the work is done.")] = Engine.local,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", metavar="HOST:PORT", help="The cluster (default: one of our own).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="Runs at a time (default: one per core).")
    ] = None,
    threads: ThreadsOption = 1,
    retries: Annotated[int, typer.Option("--retries", metavar="N", min=0, help="New tries of a run that died.")] = 2,
    store: StoreOption = "runs",
    json: JsonOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
) -> None:
    """Train every task with every encoding and seed. Stop it at any time; the same command does what is left."""
    from toposcope.core.errors import BadValue
    from toposcope.core.results import emit_csv, emit_json, envelope
    from toposcope.runs import local, on_ray
    from toposcope.runs.grid import grid, jobs, read_seeds, split_encodings, split_names
    from toposcope.runs.queue import Queue
    from toposcope.runs.store import Store
    from toposcope.runs.table import Cell, table

    if ray_address and engine is not Engine.ray:
        raise BadValue(
            f"--ray-address {ray_address} is given without --engine ray. Add it, or leave the address out."
        )
    started = time.perf_counter()
    configs = grid(
        split_names(tasks),
        split_encodings(encodings),
        read_seeds(seeds),
        profile=profile,
        variant=variant,
        changes=changes(settings, quirk),
    )
    log = console(to_stderr=True)
    with Store(store) as opened:
        opened.repair()
        at_once = workers or local.cores()
        with from_disk(store, REMOVE_RESULT):
            _announce(log, opened, configs, at_once, engine)
        with Watcher(log, configs) as watcher:
            queue = Queue(opened, wanted := jobs(configs), retries=retries, watch=watcher)
            try:
                if engine is Engine.ray:
                    on_ray.run(queue, address=ray_address, workers=workers, threads=threads)
                else:
                    local.run(queue, workers=at_once, threads=threads)
            except KeyboardInterrupt:
                watcher.close()
                done = sum(row is not None and row.status == "done" for row in _rows(opened, configs))
                log.print(f"stopped: {done} of {len(configs)} runs are done; the same command does the others")
                raise
        rows = [row for row in _rows(opened, configs) if row is not None]
        results = {job.key: result for job in wanted if (result := opened.result(job)) is not None}
        finished = [opened.directory(key) for key in results]
    with from_disk(store, REMOVE_RESULT):
        cells = table((job.config, results[job.key]) for job in wanted if job.key in results)
    failed = [row for row in rows if row.status == "failed"]
    result = envelope(
        "sweep",
        {"cells": cells, "runs": [_short(row, results.get(row.key, {})) for row in rows]},
        about=None,
        options={"store": store, "profile": profile, "variant": variant, "seeds": seeds, "engine": engine.value},
        seconds=time.perf_counter() - started,
        skipped=[{"what": row.key, "why": row.words} for row in failed],
    )
    if json:
        emit_json(result, json)
    if csv:
        emit_csv([asdict(cell) for cell in cells], csv, [each.name for each in fields(Cell)])
    with from_disk(store, REMOVE_RESULT):
        written = _write_report(html, result, finished)
    if json != "-" and csv != "-":
        out = console()
        with from_disk(store, REMOVE_RESULT):
            _print_cells(out, cells)
        _print_failed(out, failed)
        out.print(f"{duration(result['seconds'])}; {len(rows)} runs in {store}, see 'toposcope runs'", soft_wrap=True)
        for name in written:
            out.print(f"Written: {name}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _write_report(html: str | None, result: dict[str, Any], finished: Sequence[Path]) -> list[str]:
    """The report of a sweep, with the learning curves of its finished runs."""
    if not html:
        return []
    from toposcope.cli.pictures import write_pictures
    from toposcope.report import read_results

    return write_pictures([*read_results(finished), result], html, None, title="A sweep of encodings and tasks")


def _rows(store: Store, configs: Sequence[RunConfig]) -> list[Row | None]:
    return [store.get(config.key()) for config in configs]


def _announce(log: Console, store: Store, configs: Sequence[RunConfig], workers: int, engine: Engine) -> None:
    """How many runs, how many are done, how long the others will take."""
    names = [
        list(dict.fromkeys(values)) for values in zip(*((c.task, c.encoding, c.seed) for c in configs), strict=True)
    ]
    counts = [
        f"{len(many)} {word}{'s' * (len(many) > 1)}"
        for many, word in zip(names, ("task", "encoding", "seed"), strict=True)
    ]
    known = _rows(store, configs)
    done = sum(row is not None and row.status == "done" for row in known)
    log.print(f"{len(configs)} runs ({', '.join(counts)}), {done} already done")
    log.print(f"encodings: {'; '.join(names[1])}", soft_wrap=True)
    left = [config for config, row in zip(configs, known, strict=True) if row is None or row.status != "done"]
    if not left:
        return
    seconds = _estimate(store, left)
    if seconds is None:
        log.print(f"a run of {left[0].profile}: {left[0].profile_settings.about}", soft_wrap=True)
    elif engine is Engine.local:
        log.print(f"the others take about {duration(seconds / min(workers, len(left)))}, {workers} at a time")
    else:
        log.print(f"the others take about {duration(seconds)} of one core")


def _estimate(store: Store, left: Sequence[RunConfig]) -> float | None:
    """Seconds of one core, from finished runs of the same tasks and settings; None where a task has none."""
    like = _settings(left[0].as_dict())
    spent: dict[str, list[float]] = {}
    for row in store.rows():
        if row.status == "done" and row.summary and "seconds" in row.summary and _settings(row.config) == like:
            spent.setdefault(str(row.config["task"]), []).append(float(row.summary["seconds"]))
    if any(config.task not in spent for config in left):
        return None
    return sum(sum(spent[config.task]) / len(spent[config.task]) for config in left)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in ("task", "encoding", "seed")}


def _short(row: Row, result: Mapping[str, Any]) -> dict[str, Any]:
    names = ("accuracy", "loss", "floor", "ceiling", "parameters", "seconds")
    found = {name: result.get(name) for name in names}
    return {"key": row.key, "status": row.status, "words": row.words, "config": row.config, **found}


def _print_cells(out: Console, cells: Sequence[Cell]) -> None:
    from rich.table import Table

    tasks = list(dict.fromkeys(cell.task for cell in cells))
    encodings = list(dict.fromkeys(cell.encoding for cell in cells))
    at = {(cell.task, cell.encoding): cell for cell in cells}
    for first in range(0, len(tasks), ABREAST):
        block = tasks[first : first + ABREAST]
        shown = Table(box=None, pad_edge=False, header_style="bold")
        shown.add_column("accuracy, %", overflow="fold", max_width=24)
        for task in block:
            shown.add_column(f"  {task}", no_wrap=True)
        for encoding in encodings:
            shown.add_row(encoding, *(_cell(at.get((task, encoding))) for task in block))
        for name in ("floor", "ceiling"):
            bounds = [next(getattr(cell, name) for cell in cells if cell.task == task) for task in block]
            shown.add_row(f"[dim]{name}[/dim]", *(f"[dim]{_number(bound)}[/dim]" for bound in bounds))
        out.print(shown)
        out.print()
    if cells:
        out.print("mean ± half of Student's 95 % interval (seeds); floor: the task's point missed")


def _number(value: float | None) -> str:
    return "    -" if value is None else f"{100 * value:5.1f}"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "    -"
    half = "     " if cell.half is None else f"± {100 * cell.half:.1f}"
    return f"{100 * cell.mean:5.1f} {half:<6} {f'({cell.n})':>3}"


def _print_failed(out: Console, failed: Sequence[Row]) -> None:
    for row in failed:
        words = (row.words or "").strip().splitlines() or ["no words"]
        out.print(f"[bold]failed[/bold] {row.key}  {safe(title(row.config))}: {safe(words[-1])}", soft_wrap=True)
    if failed:
        out.print("the same command tries them again; 'toposcope runs show KEY' prints all they said")
