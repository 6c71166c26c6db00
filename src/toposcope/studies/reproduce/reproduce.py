"""`toposcope.reproduce`: the papers' claims, what the released code does, what comes out here, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from toposcope.core.errors import BadValue, did_you_mean
from toposcope.core.progress import Progress
from toposcope.core.result import Provenance
from toposcope.core.sealed import stored_values
from toposcope.lab.result import TrainResult
from toposcope.runs.directory import REMOVE
from toposcope.runs.driver import run_jobs
from toposcope.runs.grid import jobs as train_jobs
from toposcope.runs.grid import read_seeds
from toposcope.runs.jobs import PROBE, Job
from toposcope.studies.reproduce import coupling, dynamics
from toposcope.studies.reproduce.evidence import Evidence
from toposcope.studies.reproduce.outcome import judged_claims, numbers, table
from toposcope.studies.reproduce.result import ProbeTable, ReproduceResult
from toposcope.studies.reproduce.rules import find_rules, study_names

FACTS = "facts"  # the size of dynamics that trains nothing
WHATS = ("coupling", "dynamics")
TOML = ".toml"  # rules of one's own


def reproduce(
    what: str,
    *,
    size: str = "demo",
    seeds: str | int | Sequence[int] | None = None,
    jobs: int | None = None,
    device: str = "cpu",
    store: str | Path = "runs",
    progress: Progress | None = None,
) -> ReproduceResult:
    """Put a paper's claims to the test: coupling, dynamics, or a study by its own rules (`study_names()`, or a file).

    Many small models are trained in `store`, `jobs` at a time; stop it at any time, and the same call goes on. `size`
    is "demo", or "full" with more seeds; "facts" (dynamics) trains nothing. `seeds` says how many, or which.
    `device` is cpu, cuda (every GPU in turn), cuda:1, mps or auto.
    """
    if what not in (*WHATS, *study_names()) and not what.endswith(TOML):
        raise BadValue(f"unknown reproduction '{what}'. {did_you_mean(what, (*WHATS, *study_names()))}")
    if what not in WHATS:
        return _study(what, size, seeds, jobs, device, store, progress)
    if what == "coupling":
        return _coupling(size, seeds, jobs, device, store, progress)
    if size == FACTS:
        return _facts()
    return _dynamics(size, seeds, jobs, device, store, progress)


Seeds = str | int | Sequence[int] | None


def _coupling(
    name: str, seeds: Seeds, at_once: int | None, device: str, store: str | Path, progress: Progress | None
) -> ReproduceResult:
    started = time.perf_counter()
    size = coupling.find_size(name)
    chosen = read_seeds(size.seeds if seeds is None else seeds)
    configs = coupling.grid(size, chosen)
    steps = {config.key(): int(config.settings["steps"]) for config in configs}
    outcome = run_jobs(
        train_jobs(configs), store, steps=steps, at_once=at_once, device=device, guess=size.seconds,
        progress=progress,
    )  # fmt: skip
    place = Path(store)
    found = [TrainResult.from_dict(data, str(place / key)) for key, data in outcome.results.items()]
    with stored_values(store, REMOVE):
        evidence = Evidence(found)
        return ReproduceResult(
            what="coupling",
            size=name,
            seeds=len(chosen),
            profile=size.profile,
            runs_done=len(found),
            claims=tuple(judged_claims(coupling.CLAIMS, evidence)),
            cells=tuple(table(evidence)),
            numbers=tuple(numbers(coupling.CLAIMS, evidence)),
            skipped=outcome.failed,
            provenance=_provenance("coupling", name, len(chosen), store, started),
        )


def _study(
    what: str, name: str, seeds: Seeds, at_once: int | None, device: str, store: str | Path, progress: Progress | None
) -> ReproduceResult:
    """A study whose rules stand in a file of their own."""
    from toposcope.studies.reproduce import study

    started = time.perf_counter()
    rules = find_rules(what)
    size = rules.size(name)
    chosen = read_seeds(size.seeds if seeds is None else seeds)
    runs = study.placed(rules, size, chosen, store)
    wanted = study.study_jobs(runs)
    outcome = run_jobs(
        wanted, store, steps={each.config.key(): int(each.config.settings["steps"]) for each in runs},
        at_once=at_once, device=device, guess=size.seconds, progress=progress,
    )  # fmt: skip
    place, results = Path(store), outcome.results
    if rules.kind == "train":
        results = {key: TrainResult.from_dict(data, str(place / key)) for key, data in results.items()}  # type: ignore[misc]
    with stored_values(store, REMOVE):
        found = study.judged(rules, study.StudyRuns(rules, runs, results))
        return ReproduceResult(
            what=rules.name,
            size=name,
            seeds=len(chosen),
            claims=tuple(study.claims_of(rules, size, found)),
            runs_done=len(results),
            numbers=tuple(study.numbers_of(found)),
            study=found,
            skipped=outcome.failed,
            provenance=_provenance(rules.name, name, len(chosen), store, started),
        )


def _facts() -> ReproduceResult:
    started = time.perf_counter()
    return ReproduceResult(
        what="dynamics",
        size=FACTS,
        seeds=0,
        claims=tuple(dynamics.checked()),
        provenance=_provenance("dynamics", FACTS, 0, None, started),
    )


def _dynamics(
    name: str, seeds: Seeds, at_once: int | None, device: str, store: str | Path, progress: Progress | None
) -> ReproduceResult:
    """The facts about the released code, and byte models held to regimes beside them."""
    from toposcope.studies.language import groups
    from toposcope.studies.language.outcome import Found, claims, numbers, rows

    started = time.perf_counter()
    size = groups.find_size(name, FACTS)
    chosen = read_seeds(size.seeds if seeds is None else seeds)
    by_group = groups.grid(size, chosen)
    configs = groups.in_order(by_group)
    facts = [claim for claim in dynamics.checked() if claim.id != dynamics.TRAINED]
    outcome = run_jobs(
        [Job(config.key(), PROBE, config.as_dict()) for config in configs], store,
        steps={config.key(): config.steps for config in configs}, at_once=at_once, device=device,
        guess=size.seconds, progress=progress,
    )  # fmt: skip
    results = outcome.results
    with stored_values(store, REMOVE):
        found = Found(
            {group: [results[c.key()] for c in some if c.key() in results] for group, some in by_group.items()}
        )
        return ReproduceResult(
            what="dynamics",
            size=name,
            seeds=len(chosen),
            claims=(*facts, *claims(found)),
            runs_done=len(results),
            numbers=tuple(numbers(found)),
            probe=ProbeTable(name, len(results), configs[0].as_dict(), tuple(rows(found))),
            skipped=outcome.failed,
            provenance=_provenance("dynamics", name, len(chosen), store, started),
        )


def _provenance(what: str, size: str, seeds: int, store: str | Path | None, started: float) -> Provenance:
    asked = {"what": what, "size": size, "seeds": seeds, "store": None if store is None else str(store)}
    return Provenance(options=asked, seconds=time.perf_counter() - started)
