"""Fuzz every reader: damaged files are read, or refused with a sentence; nothing crashes, hangs or takes memory.

    python -m tests.faults.fuzz --cases 100000 --seed 0

Case k is the same in every run: which reader, which file, what damage. Cases run in forked workers that may use a
limited amount of memory more than they begin with, and a limited processor time for each case. A case that kills its
worker is counted and the next worker goes on after it.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import gc
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

import numpy as np

from tests.faults.mutations import damaged, pick
from tests.faults.readers import READERS, Reader, Tree, quiet, settle

MEMORY = 1 << 30  # bytes beyond what the worker began with: some forty times the largest file here
SECONDS = 20.0  # of processor time for one case
BATCH = 1000  # cases of one worker


@dataclass
class Tally:
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: collections.defaultdict(Counter))
    failures: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(each.total() for each in self.outcomes.values())

    def bad(self, kind: str) -> int:
        return sum(each[kind] for each in self.outcomes.values())


class Fuzz:
    """Sound files of all readers, made once, and the cases that come from them."""

    def __init__(self, scratch: Path, seed: int, chosen: Sequence[Reader] = READERS) -> None:
        quiet()
        warnings.simplefilter("ignore")
        self.scratch, self.seed, self.readers = scratch, seed, list(chosen)
        settle(scratch / "sound")
        self.seeds: dict[str, list[Tree]] = {}
        for number, reader in enumerate(self.readers):
            place = scratch / f"seeds{number}"
            place.mkdir(parents=True)
            self.seeds[reader.name] = reader.seeds(place)
        shares = np.array([reader.share for reader in self.readers])
        self._edges = np.cumsum(shares / shares.sum())
        gc.collect()
        gc.freeze()  # collections in workers leave shared pages alone
        self._now = mmap(-1, 8)  # the case that the worker is at

    def case(self, number: int) -> tuple[Reader, Tree, np.random.Generator]:
        """The reader of a case and the files it is to read, one of them damaged."""
        random = np.random.default_rng([self.seed, number])
        drawn = min(int(np.searchsorted(self._edges, random.random())), len(self.readers) - 1)
        reader = self.readers[number if number < len(self.readers) else drawn]  # first each once, then by shares
        tree = dict(pick(random, self.seeds[reader.name]))
        name = pick(random, [name for each in reader.damage for name in tree if fnmatch.fnmatchcase(name, each)])
        tree[name] = damaged(random, tree[name], reader.mutations)
        return reader, tree, random

    def check_seeds(self) -> None:
        """The sound files are read; otherwise refusals would show nothing."""
        for reader in self.readers:
            for tree in self.seeds[reader.name]:
                place = self._laid_out(tree)
                reader.read(place)

    def run(self, first: int, last: int, say: Callable[[str], None] | None = None, every: int = 5000) -> Tally:
        """The cases from `first` up to `last`."""
        tally, at, began = Tally(), first, time.monotonic()
        told = first + every
        while at < last:
            known = len(tally.failures)
            at = self._batch(at, min(last, at + BATCH), tally)
            for line in tally.failures[known:]:
                if say:
                    say(f"  {line}")
            if say and at >= told:
                told += every
                say(f"{at - first} cases, {len(tally.failures)} failures, {time.monotonic() - began:.0f} s")
        return tally

    # ------------------------------------------------------------- inside
    def _batch(self, first: int, last: int, tally: Tally) -> int:
        """One worker; returns the number of the case after its last."""
        log = self.scratch / "outcomes"
        log.write_bytes(b"")
        child = os.fork()
        if child == 0:
            code = 70
            try:
                self._work(first, last, log)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        for line in log.read_text(errors="replace").splitlines():
            reader, outcome, *words = line.split("\t", 2)
            tally.outcomes[reader][outcome] += 1
            if words:
                tally.failures.append(f"{reader}: {words[0]}")
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return last
        at = struct.unpack("<q", self._now[:8])[0]
        reader = self.case(at)[0]
        outcome = "hang" if code == -signal.SIGPROF else "crash"
        tally.outcomes[reader.name][outcome] += 1
        tally.failures.append(f"{reader.name}: case {at}: {outcome}, exit code {code}")
        return at + 1

    def _work(self, first: int, last: int, log: Path) -> None:
        from toposcope.core.errors import ToposcopeError

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        with log.open("a") as out:
            for number in range(first, last):
                self._now[:8] = struct.pack("<q", number)
                reader, tree, _ = self.case(number)
                place = self._laid_out(tree)
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
                words = ""
                try:
                    reader.read(place)
                    outcome = "read"
                except ToposcopeError:
                    outcome = "refused"
                except MemoryError:
                    outcome = "memory"
                    words = _where(number)
                except BaseException:  # noqa: BLE001 - every other exception is what we look for
                    outcome = "crash"
                    words = _where(number)
                signal.setitimer(signal.ITIMER_PROF, 0.0)
                out.write(f"{reader.name}\t{outcome}{chr(9) + words if words else ''}\n")
                out.flush()

    def _laid_out(self, tree: Tree) -> Path:
        place = self.scratch / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, content in tree.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return place


def _where(number: int) -> str:
    """The exception in a line, with the deepest place in the package."""
    error = sys.exc_info()[1]
    frames = (
        [frame for frame in traceback.extract_tb(error.__traceback__) if "toposcope" in frame.filename]
        if error
        else []
    )
    at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"case {number}: {type(error).__name__} at {at}: {str(error)[:160]}".replace("\n", " ").replace("\t", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", help="readers whose names begin so, separated by ';'")
    given = parser.parse_args()
    chosen = [each for each in READERS if given.only is None or each.name.startswith(tuple(given.only.split(";")))]
    with tempfile.TemporaryDirectory(prefix="toposcope-fuzz-") as name:
        fuzz = Fuzz(Path(name), given.seed, chosen)
        fuzz.check_seeds()
        began = time.monotonic()
        tally = fuzz.run(given.first, given.first + given.cases, lambda line: print(line, flush=True))
    for reader, outcomes in sorted(tally.outcomes.items()):
        print(f"{reader:24s} {outcomes.total():7d}  {dict(sorted(outcomes.items()))}")
    bad = [tally.bad(kind) for kind in ("crash", "hang", "memory")]
    took = time.monotonic() - began
    print(f"{tally.cases} cases in {took:.0f} s: {bad[0]} crashes, {bad[1]} hangs, {bad[2]} above the memory cap")
    raise SystemExit(bool(tally.failures))


if __name__ == "__main__":
    main()
