"""A sweep of two days in minutes: thousands of stand-in runs, drivers killed at random, clocks that jump.

    python -m tests.faults.long_sweep --jobs 20000 --kills 40

Two drivers work on one store, each with the whole list. What they do is written to a log that survives kills: every
run must end with its own result, none may be begun after it has ended, and only a kill may make one begin twice. The
clocks of the drivers (`time.time` and the times in rows) jump an hour back and forth. The time of a claim is measured
over the sweep: it must not grow with the number of runs that are done.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from toposcope.runs import store as stores
from toposcope.runs.directory import Job, write_result
from toposcope.runs.queue import Queue
from toposcope.runs.store import Claim, Store

KIND = "tests.faults.long_sweep:none"


@dataclass(frozen=True)
class Outcome:
    """What the log and the store say in the end; `claims` are microseconds, in the order in which runs were begun."""

    jobs: int
    kills: int
    done: int
    wrong: int
    begun_after_end: int
    begun_twice: int
    claims: list[float]
    restart: float
    listing: float

    def tenths(self) -> list[float]:
        """The median time of a claim in each tenth of the sweep."""
        size = max(1, len(self.claims) // 10)
        return [statistics.median(self.claims[at : at + size]) for at in range(0, size * 10, size)]


def jobs_of(count: int) -> list[Job]:
    names = (hashlib.sha256(str(number).encode()).hexdigest()[:16] for number in range(count))
    return [Job(name, KIND, {"task": "count", "encoding": "rope", "seed": n}) for n, name in enumerate(names)]


def sweep(place: Path, count: int, kills: int, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run it all below `place`."""
    dice, log, began = random.Random(seed), place / "log", time.monotonic()
    log.touch()
    moments = sorted(dice.sample(range(1, count), kills))
    drivers = {number: _start(place, count, seed + number) for number in range(2)}
    killed, fresh = 0, 2
    while drivers:
        ended = log.read_bytes().count(b"\n") // 2 if killed < kills else 0
        while killed < kills and ended >= moments[killed]:
            number = dice.choice(sorted(drivers))
            os.kill(drivers[number], signal.SIGKILL)
            os.waitpid(drivers[number], 0)
            drivers[number] = _start(place, count, seed + fresh)
            fresh, killed = fresh + 1, killed + 1
            say(f"killed {killed} of {kills} after {ended} runs, {time.monotonic() - began:.0f} s")
        for number, pid in list(drivers.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del drivers[number]
        time.sleep(0.02)
    return _judge(place, count, killed)


def _start(place: Path, count: int, seed: int) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _drive(place, count, seed)
            code = 0
        finally:
            os._exit(code)
    return child


def _drive(place: Path, count: int, seed: int) -> None:
    dice, real = random.Random(seed), time.time
    shift = [0.0]
    time.time = lambda: real() + shift[0]  # type: ignore[assignment]
    stores._now = lambda: (datetime.now(UTC) + timedelta(seconds=shift[0])).isoformat(timespec="seconds")
    log = os.open(place / "log", os.O_WRONLY | os.O_APPEND)
    with Store(place / "store") as opened:
        queue = Queue(opened, jobs_of(count))
        while queue.open:
            started = time.perf_counter()
            claim = queue.next()
            if claim is None:
                time.sleep(0.002)
                continue
            taken = 1e6 * (time.perf_counter() - started)
            number = claim.job.config["seed"]
            if dice.random() < 0.05:
                shift[0] = dice.choice([-3600.0, 0.0, 3600.0])
            os.write(log, f"begin {number} {taken:.0f}\n".encode())
            write_result(claim.directory, {"answer": _answer(number), "accuracy": 0.5})
            os.write(log, f"end {number}\n".encode())
            queue.progress(claim, {"step": 1})
            queue.finished(claim)


def _answer(number: int) -> str:
    return hashlib.sha256(f"answer {number}".encode()).hexdigest()


def _judge(place: Path, count: int, kills: int) -> Outcome:
    lines = [line.split() for line in (place / "log").read_text().splitlines()]
    ended: set[str] = set()
    late = 0
    for what, number, *_ in lines:
        late += what == "begin" and number in ended
        ended |= {number} if what == "end" else set()
    begun = Counter(number for what, number, *_ in lines if what == "begin")
    started = time.perf_counter()
    with Store(place / "store") as opened:
        opened.repair()
        rows = opened.rows()
        listing = time.perf_counter() - started
        wrong = sum((opened.result(row.job) or {}).get("answer") != _answer(row.config["seed"]) for row in rows)
        started = time.perf_counter()
        queue = Queue(opened, jobs_of(count))
        assert queue.next() is None, "a finished sweep has nothing left"
        restart = time.perf_counter() - started
    return Outcome(
        jobs=count,
        kills=kills,
        done=sum(row.status == "done" for row in rows),
        wrong=wrong,
        begun_after_end=late,
        begun_twice=sum(times > 1 for times in begun.values()),
        claims=[float(rest[0]) for what, _, *rest in lines if what == "begin"],
        restart=restart,
        listing=listing,
    )


def first_claim(place: Path, job: Job) -> bool:
    """Whether this process, of several that try at once, gets the run."""
    with Store(place) as opened, contextlib.suppress(FileNotFoundError):
        return isinstance(opened.claim(job), Claim)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toposcope-sweep-") as name:
        began = time.monotonic()
        found = sweep(Path(name), given.jobs, given.kills, given.seed, lambda line: print(line, flush=True))
        size = (Path(name) / "store" / "index.sqlite").stat().st_size
    print(f"{found.jobs} runs, {found.kills} kills, {time.monotonic() - began:.0f} s, index of {size / 1e6:.1f} MB")
    print(f"done {found.done}, wrong {found.wrong}, begun after their end {found.begun_after_end}")
    print(f"begun twice {found.begun_twice}, which takes a kill")
    print(f"median claim by tenths of the sweep, us: {', '.join(f'{each:.0f}' for each in found.tenths())}")
    print(f"listing and repair {found.listing:.1f} s; giving the finished sweep again {found.restart:.1f} s")


if __name__ == "__main__":
    main()
