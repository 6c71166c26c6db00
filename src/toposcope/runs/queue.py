"""The runs of one sweep and what becomes of them, whoever does the work.

An engine (local.py, on_ray.py) asks for the `next` run, works on it, and says how it ended. Runs that another sweep
on the same store is working on are looked at again until they are done, or their owner is dead and they are ours.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toposcope.core.errors import BadFile
from toposcope.runs.jobs import Job
from toposcope.runs.store import Busy, Claim, Finished, Store, full

BEAT = 10.0  # seconds between two signs of life in the index
What = Literal["found", "elsewhere", "started", "progress", "retried", "done", "failed"]


@dataclass(frozen=True)
class RunEvent:
    """Something happened to a run: `found` finished by someone else, or one of the steps of our own work."""

    what: What
    job: Job
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why a run ended without a result. `for_good`: trying again cannot help. `disk_full`: nothing can go on."""

    words: str
    for_good: bool = False
    disk_full: bool = False


class Queue:
    """Runs to be done, in order; each is claimed in the store before it is given out."""

    def __init__(
        self,
        store: Store,
        jobs: Iterable[Job],
        *,
        retries: int = 2,
        watch: Callable[[RunEvent], None] = lambda _: None,
    ) -> None:
        self.store, self.retries, self.watch = store, retries, watch
        self._waiting = deque({job.key: job for job in jobs}.values())
        self._out: dict[str, Claim] = {}
        self._tries: dict[str, int] = {}
        self._elsewhere: set[str] = set()
        self._beats: dict[str, float] = {}
        store.add(self._waiting)

    @property
    def open(self) -> bool:
        """Whether anything is left to do or to wait for."""
        return bool(self._waiting or self._out)

    def next(self) -> Claim | None:
        """A run to work on now, or None where all that are left are being worked on."""
        for _ in range(len(self._waiting)):
            job = self._waiting.popleft()
            claimed = self.store.claim(job)
            if isinstance(claimed, Claim):
                self._out[job.key] = claimed
                self._say("started", job, {"words": claimed.remark} if claimed.remark else None)
                return claimed
            if isinstance(claimed, Finished):
                self._say("found", job, claimed.result)
            elif isinstance(claimed, Busy):
                self._waiting.append(job)
                if job.key not in self._elsewhere:
                    self._elsewhere.add(job.key)
                    self._say("elsewhere", job, {"owner": claimed.owner})
        return None

    def progress(self, claim: Claim, data: Mapping[str, Any]) -> None:
        """The run has come so far."""
        now = time.monotonic()
        if now - self._beats.get(claim.job.key, -BEAT) >= BEAT:
            self._beats[claim.job.key] = now
            self.store.beat(claim.job.key)
        self._say("progress", claim.job, data)

    def finished(self, claim: Claim) -> None:
        """The run's directory holds its result."""
        del self._out[claim.job.key]
        try:
            result = self.store.finish(claim)
        except BadFile as error:  # what its work left is no result of it
            self._say("failed", claim.job, {"words": str(error)})
        else:
            self._say("done", claim.job, result)

    def failed(self, claim: Claim, failure: Failure) -> None:
        """The run's work ended without a result: it is tried again while there is hope."""
        job = claim.job
        del self._out[job.key]
        if failure.disk_full:
            self.store.release(claim)
            raise full(self.store.path)
        self._tries[job.key] = self._tries.get(job.key, 0) + 1
        if failure.for_good or self._tries[job.key] > self.retries:
            self.store.fail(claim, failure.words)
            self._say("failed", job, {"words": failure.words})
        else:
            self.store.release(claim)
            self._waiting.appendleft(job)
            self._say("retried", job, {"words": failure.words, "tries": self._tries[job.key]})

    def give_back(self) -> None:
        """Return all that is out, unfinished, to the store."""
        while self._out:
            _, claim = self._out.popitem()
            self.store.release(claim)

    def _say(self, what: What, job: Job, data: Mapping[str, Any] | None = None) -> None:
        self.watch(RunEvent(what, job, data or {}))
