"""`toposcope reproduce`: the papers' claims, what the released code does, what comes out here, and the verdict."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import HtmlOption, JsonOption, console
from toposcope.cli.lab_words import REMOVE_RESULT, StoreOption, duration
from toposcope.cli.reproduce_dynamics import FACTS, dynamics
from toposcope.cli.stored import from_disk
from toposcope.cli.sweep_watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from toposcope.lab.config import RunConfig
    from toposcope.runs.store import Store
    from toposcope.studies.reproduce.coupling import Size


class What(StrEnum):
    coupling = "coupling"
    dynamics = "dynamics"


def run(
    what: Annotated[What, typer.Argument(help="Content-position coupling, or token dynamics.")],
    size: Annotated[
        str, typer.Option("--size", metavar="NAME", help="demo; full: more seeds; dynamics also: facts.")
    ] = "demo",
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N|LIST", help="How many (5: 0 to 4), or which: 0-4,7.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="Runs at a time (default: one per core).")
    ] = None,
    store: StoreOption = "runs",
    markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE", help="The page (default: into the store).")
    ] = None,
    html: HtmlOption = None,
    json: JsonOption = None,
) -> None:
    """Put a paper's claims to the test. Many small models are trained; stop it at any time and go on later."""
    from toposcope.core.files import write_text
    from toposcope.core.results import emit_json
    from toposcope.studies.reproduce.page import page

    if what is What.dynamics:
        result = dynamics(size, seeds, workers, store)
        if size != FACTS:
            markdown = markdown or str(Path(store) / "reproduce-dynamics.md")
    else:
        result = _coupling(size, seeds, workers, store)
        markdown = markdown or str(Path(store) / "reproduce-coupling.md")
    if markdown:
        with from_disk(store, REMOVE_RESULT):
            text = page(result)
        write_text(Path(markdown), text)
    if html:
        from toposcope.report import write_report

        write_report(html, [result], title=f"Toposcope: reproduce {what.value}")
    if json:
        emit_json(result, json)
    if json != "-":
        out = console()
        _print(out, result["claims"])
        if result["skipped"]:
            out.print(f"{len(result['skipped'])} runs failed; the same command tries them again")
        for where in (markdown, html):
            if where:
                out.print(f"the page: {where}", soft_wrap=True)


def _coupling(name: str, seeds: str | None, workers: int | None, where: str) -> dict[str, Any]:
    from toposcope.core.results import envelope
    from toposcope.runs import local
    from toposcope.runs.grid import jobs, read_seeds
    from toposcope.runs.queue import Queue
    from toposcope.runs.store import Store
    from toposcope.studies.reproduce.coupling import CLAIMS, find_size, grid
    from toposcope.studies.reproduce.evidence import Evidence
    from toposcope.studies.reproduce.outcome import judged_claims, numbers, table

    started = time.perf_counter()
    size = find_size(name)
    chosen = read_seeds(str(size.seeds) if seeds is None else seeds)
    configs = grid(size, chosen)
    log = console(to_stderr=True)
    at_once = workers or local.cores()
    with Store(where) as store:
        store.repair()
        with from_disk(where, REMOVE_RESULT):
            first = _announcement(store, configs, size, at_once)
        log.print(first, soft_wrap=True)
        with Watcher(log, configs) as watcher:
            local.run(Queue(store, wanted := jobs(configs), watch=watcher), workers=at_once)
        found = {job.key: store.result(job) for job in wanted}
        words = {key: row.words for key in found if (row := store.get(key)) is not None}
    results = [result for result in found.values() if result is not None]
    options = {"size": name, "seeds": len(chosen), "store": where}
    with from_disk(where, REMOVE_RESULT):
        evidence = Evidence(results)
        body = {
            "what": "coupling",
            "profile": size.profile,
            "runs_done": len(results),
            "claims": judged_claims(CLAIMS, evidence),
            "table": table(evidence),
            "numbers": numbers(CLAIMS, evidence),
        }
    return envelope(
        "reproduce",
        body,
        about=None,
        options=options,
        seconds=time.perf_counter() - started,
        skipped=[{"what": key, "why": words.get(key)} for key, result in found.items() if result is None],
    )


def _announcement(store: Store, configs: Sequence[RunConfig], size: Size, workers: int) -> str:
    """How many runs, how many are left, how long they take: from finished runs of the profile where there are any."""
    spent: dict[tuple[str, str], list[float]] = {}
    done = set()
    for row in store.rows():
        if row.kind == "train" and row.status == "done" and row.summary and "seconds" in row.summary:
            done.add(row.key)
            spent.setdefault((row.config["task"], row.config["profile"]), []).append(float(row.summary["seconds"]))
    left = [config for config in configs if config.key() not in done]
    if not left:
        return f"{len(configs)} runs, all done already"
    seconds = 0.0
    for config in left:
        known = spent.get((config.task, config.profile))
        seconds += sum(known) / len(known) if known else size.seconds
    took = duration(seconds / min(workers, len(left)))
    ready = len(configs) - len(left)
    return f"{len(configs)} runs, {ready} done already; the others take about {took}, {workers} at a time"


def _print(out: Console, claims: Sequence[Mapping[str, Any]]) -> None:
    from rich.table import Table

    both = "verdict_published" in claims[0]
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("claim", "described", "published") if both else ("claim", "verdict"):
        shown.add_column(heading, overflow="fold")
    for claim in claims:
        shown.add_row(claim["id"], claim["verdict"], *([claim["verdict_published"]] if both else []))
    out.print(shown)
