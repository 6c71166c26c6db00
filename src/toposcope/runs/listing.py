"""What a store holds, for who only looks: no lock is taken, nothing is written, and a read-only disk will do.

The directories are the truth. The index adds what they do not say: the order, who works on a run, why one failed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from toposcope.core.errors import BadFile, NotFound
from toposcope.runs.directory import RUN, Job, read_job, read_result, summary
from toposcope.runs.index import INDEX, Index, Row, said_plainly


def require_runs(store: Path) -> None:
    """Complain where there is no store."""
    if not os.path.lexists(store / INDEX) and not any(os.path.lexists(place / RUN) for place in _directories(store)):
        raise NotFound(f"{store} holds no runs. 'toposcope train' and 'toposcope sweep' make them; see --store.")


def listing(store: str | Path, only: str | None = None) -> list[Row]:
    """All runs of a store, in the order they were added; of those that are done, what their own results say.

    `only` is the key of one, where no other is asked for.
    """
    path = Path(store)
    require_runs(path)
    with said_plainly(path):
        index = Index.copy(path)
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


def _seen(place: Path, job: Job, row: Row | None) -> Row:
    if row is None:
        row = Row(job.key, job.kind, {}, "queued", None, None, None, None, "", None, None, "")
    row = replace(row, kind=job.kind, config=dict(job.config), summary=None)
    try:
        result = read_result(place, job)
    except BadFile as error:
        return _not_done(row, str(error))
    if result is not None:
        return replace(row, status="done", owner=None, words=None, summary=summary(result))
    return _not_done(row, None)


def _not_done(row: Row, words: str | None) -> Row:
    """Whatever the index says of it."""
    status = "queued" if row.status == "done" else row.status
    return replace(row, status=status, summary=None, words=words or row.words)
