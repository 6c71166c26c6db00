"""What a store holds, for who only looks: no lock is taken, nothing is written, and a read-only disk will do.

The directories are the truth. The index adds what they do not say: the order, who works on a run, why one failed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toposcope.core.errors import BadFile, BadValue, NotFound, did_you_mean
from toposcope.core.result import Provenance, Result
from toposcope.runs.directory import RUN, read_job, read_result, summary
from toposcope.runs.index import INDEX, STATES, RunIndex, RunRow, chosen, said_plainly
from toposcope.runs.jobs import Job


@dataclass(frozen=True, kw_only=True, eq=False)
class RunsResult(Result):
    """What a store of runs holds."""

    kind = "runs"
    table = "runs"

    store: str
    runs: tuple[RunRow, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult(Result):
    """One run, and the result it left if it is done: that of `train`, or of a byte model of the studies."""

    kind = "run"

    directory: str
    run: RunRow
    result: Mapping[str, Any] | None


def list_runs(store: str | Path = "runs", *, status: str | None = None) -> RunsResult:
    """The runs of a store; `status` chooses the queued, running, done or failed ones."""
    if status is not None and status not in STATES:
        raise BadValue(f"unknown state of a run '{status}'. {did_you_mean(status, STATES)}")
    rows = tuple(row for row in listing(store) if status in (None, row.status))
    return RunsResult(store=str(store), runs=rows, provenance=Provenance(options={"status": status}))


def show_run(key: str, store: str | Path = "runs") -> RunResult:
    """One run of a store, by its key or the beginning of it."""
    place = Path(store)
    row = chosen(listing(place), key, place)
    directory = place / row.key
    result = read_result(directory, row.job) if row.status == "done" else None
    return RunResult(directory=str(directory), run=row, result=result, provenance=Provenance(options={"key": key}))


def require_runs(store: Path) -> None:
    """Complain where there is no store."""
    if not os.path.lexists(store / INDEX) and not any(os.path.lexists(place / RUN) for place in _directories(store)):
        raise NotFound(f"{store} holds no runs. 'toposcope train' and 'toposcope sweep' make them; see --store.")


def listing(store: str | Path, only: str | None = None) -> list[RunRow]:
    """All runs of a store, in the order they were added; of those that are done, what their own results say.

    `only` is the key of one, where no other is asked for.
    """
    path = Path(store)
    require_runs(path)
    with said_plainly(path):
        index = RunIndex.copy(path)
        rows = [] if index is None else index.rows()
        if index is not None:
            index.close()
    found = {row.key: row for row in rows if only in (None, row.key)}
    places = {place.name: place for place in _directories(path) if only in (None, place.name)}
    for name, place in places.items():
        job = read_job(place)
        if job is not None and job.key == name:
            found[name] = _seen(place, job, found.get(name))
        elif name in found:
            found[name] = _not_done(found[name], f"{place / RUN} does not say what the run is")
    return [row if row.key in places else _not_done(row, None) for row in found.values()]


def _directories(store: Path) -> list[Path]:
    """The runs' directories; links are no runs."""
    with said_plainly(store):
        try:
            entries = sorted(os.scandir(store), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
    return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _seen(place: Path, job: Job, row: RunRow | None) -> RunRow:
    if row is None:
        row = RunRow(job.key, job.kind, {}, "queued", None, None, None, None, "", None, None, "")
    row = replace(row, kind=job.kind, config=dict(job.config), summary=None)
    try:
        result = read_result(place, job)
    except BadFile as error:
        return _not_done(row, str(error))
    if result is not None:
        return replace(row, status="done", owner=None, words=None, summary=summary(result))
    return _not_done(row, None)


def _not_done(row: RunRow, words: str | None) -> RunRow:
    """Whatever the index says of it."""
    status = "queued" if row.status == "done" else row.status
    return replace(row, status=status, summary=None, words=words or row.words)
