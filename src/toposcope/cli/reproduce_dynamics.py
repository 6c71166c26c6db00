"""The part of `toposcope reproduce dynamics` that trains: byte models held to regimes, through the run store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from toposcope.cli.common import console
from toposcope.cli.lab_words import REMOVE_RESULT, duration
from toposcope.cli.stored import from_disk
from toposcope.cli.sweep_watch import Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toposcope.runs.store import Store
    from toposcope.studies.language.config import ProbeConfig

FACTS = "facts"  # the size that trains nothing


def dynamics(name: str, seeds: str | None, workers: int | None, where: str) -> dict[str, Any]:
    """The facts about the released code; and, unless only these are asked for, the trained models beside them."""
    from toposcope.core.results import envelope
    from toposcope.studies.reproduce.dynamics import TRAINED, checked

    started = time.perf_counter()
    claims = checked()
    if name == FACTS:
        took = time.perf_counter() - started
        facts = {"what": "dynamics", "claims": claims}
        return envelope("reproduce", facts, about=None, options={"size": name}, seconds=took)

    from toposcope.runs.grid import read_seeds
    from toposcope.studies.language import groups
    from toposcope.studies.language.outcome import Found, numbers, rows
    from toposcope.studies.language.outcome import claims as trained_claims

    size = groups.find_size(name, FACTS)
    chosen = read_seeds(str(size.seeds) if seeds is None else seeds)
    by_group = groups.grid(size, chosen)
    configs = groups.in_order(by_group)
    results, words = _trained(configs, size.seconds, workers, where)
    with from_disk(where, REMOVE_RESULT):
        found = Found(
            {group: [results[c.key()] for c in some if c.key() in results] for group, some in by_group.items()}
        )
        body: dict[str, Any] = {
            "what": "dynamics",
            "claims": [claim for claim in claims if claim["id"] != TRAINED] + trained_claims(found),
            "runs_done": len(results),
            "numbers": numbers(found),
            "probe": {"size": name, "runs_done": len(results), "sizes": configs[0].as_dict(), "rows": rows(found)},
        }
    options = {"size": name, "seeds": len(chosen), "store": where}
    skipped = [{"what": c.key(), "why": words.get(c.key())} for c in configs if c.key() not in results]
    seconds = time.perf_counter() - started
    return envelope("reproduce", body, about=None, options=options, seconds=seconds, skipped=skipped)


def _trained(
    configs: Sequence[ProbeConfig], guess: float, workers: int | None, where: str
) -> tuple[dict[str, dict[str, Any]], dict[str, str | None]]:
    """Results by key, and the last words of runs that failed."""
    from toposcope.runs import local
    from toposcope.runs.directory import Job
    from toposcope.runs.queue import Queue
    from toposcope.runs.store import Store
    from toposcope.studies.language.expected import KIND

    log, at_once = console(to_stderr=True), workers or local.cores()
    jobs = [Job(config.key(), KIND, config.as_dict()) for config in configs]
    with Store(where) as store:
        store.repair()
        with from_disk(where, REMOVE_RESULT):
            first = _announcement(store, configs, guess, at_once)
        log.print(first, soft_wrap=True)
        with Watcher(log, configs) as watcher:
            local.run(Queue(store, jobs, watch=watcher), workers=at_once)
        found = {job.key: store.result(job) for job in jobs}
        words = {key: row.words for key in found if (row := store.get(key)) is not None}
    return {key: result for key, result in found.items() if result is not None}, words


def _announcement(store: Store, configs: Sequence[ProbeConfig], guess: float, workers: int) -> str:
    """How many models, how many are left, and how long they take: from finished ones of as many steps, if any."""
    from toposcope.studies.language.expected import KIND

    done, spent = set(), []
    for row in store.rows():
        if row.kind == KIND and row.status == "done" and row.summary:
            done.add(row.key)
            if row.config.get("steps") == configs[0].steps:
                spent.append(float(row.summary["seconds"]))
    left = sum(config.key() not in done for config in configs)
    if not left:
        return f"{len(configs)} models, all trained already"
    seconds = left * (sum(spent) / len(spent) if spent else guess) / min(workers, left)
    return (
        f"{len(configs)} models, {len(configs) - left} trained already; the others take about {duration(seconds)}, "
        f"{workers} at a time"
    )
