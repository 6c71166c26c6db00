"""Walk the write points: make each one fail in each way, and see that nothing is lost.

    python -m tests.faults.walk --all           every write point of every command, every fault
    python -m tests.faults.walk --sample 60     so many of them, drawn with --seed

A fault is one fork of a process that has everything imported. After it:

* every file under its final name is absent, the old one as a whole, or a new one as a whole;
* an error of the disk ends in one sentence and exit code 2 (or is overcome), a signal in exit code 130 or 143;
  neither leaves a traceback, nor half a file under a temporary name where it could be removed;
* the same command, given again, ends as an undisturbed one does, and repeats no training step and no layer of a scan
  that had been saved.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fnmatch
import gc
import json
import os
import random
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.faults import cases, points
from tests.faults.cases import CASES, Case
from tests.faults.points import FAULTS, Plan

PATIENCE = 120.0  # seconds until a command counts as hanging
LITTER = (".tmp", ".lock", "-journal")
TRAINING = "optimizer steps"
Tree = dict[str, bytes]


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (or minus the signal), what it said, and the write points it met."""

    code: int
    words: str
    points: list[list[str]]
    fired: bool
    steps: int  # of training
    layers: int  # of scans


@dataclass
class Tally:
    points: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)


class Walk:
    """A scratch directory with a template, and the one place in which every command runs."""

    def __init__(self, scratch: Path, chosen: Sequence[Case] = CASES) -> None:
        self.scratch = scratch.resolve()
        self.template, self.work, self.temporary = (self.scratch / name for name in ("template", "work", "tmp"))
        self.words, self.log = self.scratch / "words", self.scratch / "log"
        self.template.mkdir()
        self.temporary.mkdir()
        tempfile.tempdir = str(self.temporary)
        _get_ready()
        self.removed = ""
        cases.prepare(self.template, self._in_template)
        self.removed = cases.removed_key(self.template)
        self._warm_up(chosen)

    def _warm_up(self, chosen: Sequence[Case]) -> None:
        """Do every light command once in this very process: what it imports and compiles, all forks then have."""
        here, out, errors = Path.cwd(), sys.stdout, sys.stderr
        for case in chosen:
            if case.call is None and case.roles == ("command",):
                self.begin(case)
                os.chdir(self.work)
                with Path(os.devnull).open("w") as nothing:
                    sys.stdout = sys.stderr = nothing
                    with contextlib.suppress(SystemExit):
                        self._named(case).run()
                    sys.stdout, sys.stderr = out, errors
        os.chdir(here)
        gc.collect()
        gc.freeze()  # collections in forks leave shared pages alone

    def _named(self, case: Case) -> Case:
        words = tuple(word.replace("REMOVED", self.removed) for word in case.arguments)
        return Case(case.name, words, call=case.call)

    def _in_template(self, case: Case) -> None:
        ended = self.run(case, Plan(), self.template)
        assert ended.code == 0, ended.words

    def begin(self, case: Case) -> Tree:
        """The work directory as it is before the command."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.template, self.work)
        for name in case.old:
            (self.work / name).write_bytes(cases.OLD)
        return tree(self.work)

    def run(self, case: Case, plan: Plan, where: Path | None = None) -> Ended:
        """The command in a process of its own, and the processes it leaves."""
        self.log.unlink(missing_ok=True)
        self.log.touch()
        _made[:] = bytes(16)
        child = os.fork()
        if child == 0:
            self._child(case, plan, where or self.work)
        status, deadline = None, time.monotonic() + PATIENCE
        while True:  # until the command and all that it started have ended
            with contextlib.suppress(ChildProcessError):
                pid, raw = os.waitpid(-1, os.WNOHANG)
                if pid == child:
                    status = raw
                if pid == 0:
                    time.sleep(0.002)
                    if time.monotonic() > deadline:
                        os.killpg(child, signal.SIGKILL)
                continue
            break
        assert status is not None
        code = os.waitstatus_to_exitcode(status)
        words = self.words.read_text(errors="replace")
        if time.monotonic() > deadline:
            words += "\nTraceback: it hung"
        noted = [line.split("\t") for line in self.log.read_text().splitlines()]
        return Ended(code, words, noted, points.fired(), *struct.unpack("<qq", _made))

    def _child(self, case: Case, plan: Plan, where: Path) -> None:
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it
            os.chdir(where)
            out = os.open(self.words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in (1, 2):
                os.dup2(out, number)
            time.perf_counter = time.process_time = lambda: 0.0  # type: ignore[assignment] # results hold timings
            points.arm(plan, (where, self.temporary), self.log)
            try:
                self._named(case).run()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:  # noqa: BLE001 - what a user would see
                import traceback

                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def tree(directory: Path) -> Tree:
    """Every file, whole."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def is_litter(name: str) -> bool:
    return name.endswith(LITTER) or "/.writing-" in name


def rows_of(path: Path) -> Any:
    """What the index says, without times and owners; read from a copy, as a later process would find it."""
    with tempfile.TemporaryDirectory(dir=path.parents[2] if len(path.parents) > 2 else None) as name:
        for each in path.parent.glob(f"{path.name}*"):
            shutil.copy(each, name)
        base = sqlite3.connect(Path(name) / path.name)
        try:
            if base.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return "damaged"
            if not base.execute("SELECT name FROM sqlite_master WHERE name = 'runs'").fetchall():
                return []
            return base.execute("SELECT key, kind, config, status, summary FROM runs ORDER BY key").fetchall()
        except sqlite3.DatabaseError as error:
            return f"damaged: {error}"
        finally:
            base.close()


def unlike(work: Path, before: Tree, final: Tree) -> list[str]:
    """Files that are neither what stood there, nor what should, nor a whole state in between."""
    found, now = [], tree(work)
    for name, content in now.items():
        if is_litter(name) or content in (before.get(name), final.get(name)):
            continue
        if not _whole(work / name, content, final.get(name, b"")):
            found.append(f"{name} is half written ({len(content)} bytes)")
    return found + [f"{name} is gone" for name in before if name not in now and name in final]


def _whole(path: Path, content: bytes, final: bytes) -> bool:
    if path.name == "checkpoint.pt":
        import torch

        try:
            return isinstance(torch.load(path, weights_only=True), dict)
        except Exception:  # noqa: BLE001 - damaged in any way
            return False
    if path.name == "journal.jsonl":
        return final.startswith(content)  # its last line may be cut: that is what the reader expects
    if path.name == "index.sqlite":
        return isinstance(rows_of(path), list)
    if path.suffix == ".csv":  # of a sweep some of whose runs failed
        rows = [line.count(",") for line in content.decode().splitlines()]
        return content.endswith(b"\n") and content.split(b"\n")[0] == final.split(b"\n")[0] and len({*rows}) == 1
    if path.suffix == ".html":  # the same of these two
        return content.startswith(b"<!doctype html>") and content.endswith(b"</html>")
    if path.suffix == ".md":
        lines, wanted = content.splitlines(), final.splitlines()
        return bool(lines and wanted) and (lines[0], lines[-1]) == (wanted[0], wanted[-1])
    if path.suffix == ".json":
        try:
            json.loads(content)
        except ValueError:
            return False
        return True
    return False


def left_to_do(work: Path, case: Case) -> int | None:
    """Steps (or layers) that the next session has to make, from what is on the disk; None where none are counted."""
    import torch

    def saved(directory: Path) -> dict[str, Any]:
        path = directory / "checkpoint.pt"
        return torch.load(path, weights_only=True) if path.exists() else {}

    kept = work / "kept"
    if case.name == "refine":
        if (kept / "result.json").exists():
            return 0
        arms = saved(kept).get("arms", {})
        return sum(cases.STEPS - arms.get(arm, {}).get("step", 0) for arm in ("diagonal", "control"))
    if case.name == "scan, kept":
        journal = kept / "journal.jsonl"
        lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
        return cases.LAYERS - max(lines - 1, 0)
    if not case.runs:
        return None
    runs = [path for path in kept.glob("*") if path.is_dir()]
    done = sum(cases.STEPS if (run / "result.json").exists() else saved(run).get("step", 0) for run in runs)
    return case.runs * cases.STEPS - done


def difference(work: Path, final: Tree, calm_rows: dict[str, Any]) -> list[str]:
    """Where the directory is not what an undisturbed command leaves."""
    now = {name: content for name, content in tree(work).items() if not is_litter(name)}
    wanted = {name: content for name, content in final.items() if not is_litter(name)}
    found = [f"{name} is missing" for name in wanted.keys() - now.keys()]
    found += [f"{name} is left over" for name in now.keys() - wanted.keys()]
    for name in now.keys() & wanted.keys():
        if name.endswith("index.sqlite"):
            if rows_of(work / name) != calm_rows[name]:
                found.append(f"{name} says something else")
        elif _plain(name, now[name]) != _plain(name, wanted[name]):
            found.append(f"{name} differs")
    return found


def _plain(name: str, content: bytes) -> Any:
    """A file without what may differ: whether a run was trained by this very call, which session read a tensor."""
    if name.endswith("journal.jsonl"):
        lines = [json.loads(line) for line in content.splitlines()]
        read = {tensor: line for each in lines for tensor, line in each.pop("read", {}).items()}
        return [{**each, "sha256": ""} for each in lines], read  # sums are of whole lines, and checked by the reader
    return content.replace(b'"trained_now": false', b'"trained_now": true') if name == "o.json" else content


def judge(ended: Ended, plan: Plan, work: Path, calm: Ended) -> list[str]:
    """What a user may expect of the way in which it ended."""
    found, fault, worker = [], plan.fault, plan.role == "worker"
    last = ended.words.strip().splitlines()[-1:] or [""]
    if fault == "kill" and not worker:
        return []
    if "Traceback" in ended.words or "Exception ignored" in ended.words:
        found.append(f"a traceback: {last[0][:200]}")
    allowed = {"int": (0, 130), "term": (0, 130, 143)}.get(fault, (0, 2))
    if worker:  # the driver is told: the run is tried again, or counted as failed with exit code 1
        allowed = (0, 1, 2)
    if ended.code not in (*allowed, calm.code):
        found.append(f"exit code {ended.code}: {last[0][:200]}")
    if ended.code == 2 and "toposcope: " not in ended.words:
        found.append(f"no sentence: {last[0][:200]}")
    if fault != "readonly" and not (worker and fault == "kill"):
        found += [f"{name} was left behind" for name in tree(work) if name.endswith(".tmp") or ".writing-" in name]
    return found


class CaseWalk:
    """One command: an undisturbed run, and then the faults."""

    def __init__(self, walk: Walk, case: Case) -> None:
        self.walk, self.case = walk, case
        self.before = walk.begin(case)
        self.calm = walk.run(case, Plan())
        assert self.calm.code in (0, 1), f"{case.name}: {self.calm.words}"
        assert "Traceback" not in self.calm.words, self.calm.words
        self.final = tree(walk.work)
        self.rows = {name: rows_of(walk.work / name) for name in self.final if name.endswith("index.sqlite")}
        self.counts = Counter(role for role, *_ in self.calm.points)

    def plans(self) -> list[Plan]:
        return [
            Plan(k, fault, role)
            for role in self.case.roles
            for k in range(1, self.counts[role] + 1)
            for fault in FAULTS
            if self._matters(k, fault, role)
        ]

    def _matters(self, k: int, fault: str, role: str) -> bool:
        """An error can only be injected into calls that may give it."""
        kind = next(kind for who, number, kind, _ in self.calm.points if (who, int(number)) == (role, k))
        if fault in ("full", "full-once"):
            return kind in points.GIVES
        return kind in points.NAMED if fault == "denied" else True

    def fault(self, plan: Plan) -> list[str] | None:
        """Make it happen; what was lost, or None where the point was not met this time."""
        walk, case = self.walk, self.case
        walk.begin(case)
        ended = walk.run(case, plan)
        if not ended.fired:
            return None
        found = judge(ended, plan, walk.work, self.calm)
        found += unlike(walk.work, self.before, self.final)
        left = left_to_do(walk.work, case)
        finished = {path: path.stat().st_mtime_ns for path in walk.work.glob("kept/*/result.json")}
        again = walk.run(case, Plan())
        gone = case.name == "runs rm" and again.code == 2 and "no run in" in again.words
        if again.code != self.calm.code and not gone:
            found.append(f"given again, exit code {again.code}: {again.words.strip()[-300:]}")
        found += [f"given again, {words}" for words in difference(walk.work, self.final, self.rows)]
        made = again.layers if case.name == "scan, kept" else again.steps  # a trained probe is scanned as well
        if left is not None and made != left:
            found.append(f"given again, {made} steps or layers were made where {left} were left")
        found += [f"{path} was made twice" for path, when in finished.items() if path.stat().st_mtime_ns != when]
        return [
            f"{case.name}: {plan.fault} at {plan.role} {plan.k} ({self._where(plan)}): {words}" for words in found
        ]

    def _where(self, plan: Plan) -> str:
        found = [
            (kind, path) for who, number, kind, path in self.calm.points if (who, int(number)) == (plan.role, plan.k)
        ]
        return f"{found[0][0]} {Path(found[0][1]).name}" if found else "?"


def walk_all(walk: Walk, chosen: Sequence[Case], sample: int | None, seed: int, say: Any = print) -> Tally:
    """Every plan of the chosen commands, or a sample of them."""
    tally, dice = Tally(), random.Random(seed)
    prepared = [CaseWalk(walk, case) for case in chosen]
    per_case = (
        None
        if sample is None
        else [sample // len(prepared) + (i < sample % len(prepared)) for i in range(len(prepared))]
    )
    for number, each in enumerate(prepared):
        plans = each.plans()
        tally.points += sum(each.counts[role] for role in each.case.roles)
        if per_case is not None:
            plans = dice.sample(plans, min(per_case[number], len(plans)))
        began, lost = time.monotonic(), len(tally.losses)
        injected = 0
        for plan in plans:
            found = each.fault(plan)
            if found is None:
                continue
            injected += 1
            tally.faults[plan.fault] += 1
            tally.losses += found
            for line in found:
                say(f"  LOST {line}")
        say(
            f"{each.case.name}: {dict(each.counts)} write points, {injected} faults, "
            f"{len(tally.losses) - lost} losses, {time.monotonic() - began:.0f} s"
        )
    return tally


# ------------------------------------------------------------- one process with everything imported

_made = __import__("mmap").mmap(-1, 16)  # steps of training, layers of scans


def _get_ready() -> None:
    """Import what commands import, make training tiny, and let workers be forks of this process."""
    import importlib
    import pkgutil

    import torch
    from matplotlib.figure import Figure

    import toposcope
    from toposcope.dynamics import trajectory
    from toposcope.lab import ablation, train
    from toposcope.report import figure
    from toposcope.runs import local, store, worker
    from toposcope.scanning import scan as scanning
    from toposcope.studies import tuning
    from toposcope.studies.language import probe

    os.environ["COLUMNS"] = "80"
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(toposcope.__path__, "toposcope."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in (
        "transformers.models.llama.modeling_llama",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
        "matplotlib.font_manager",
    ):
        importlib.import_module(name)
    train.SAVE_EVERY = probe.SAVE_EVERY = tuning.EVERY = cases.SAVED_EVERY
    train.GLANCE, ablation.SENTENCES = 8, 16
    train.fixed_sentences.__defaults__ = (16,)  # 2,000 in earnest
    store._now = lambda: "2026-01-01T00:00:00+00:00"
    torch.optim.Adam.step = _counted(torch.optim.Adam.step, 0)  # AdamW's as well
    scanning.layer_entry = _counted(scanning.layer_entry, 8)
    cases.make_reproductions_tiny()
    trajectory.FRAMES, Figure.savefig = 2, _pictured(Figure.savefig)
    figure._converter = _drawn  # type: ignore[assignment]
    local.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=_Forked, DEVNULL=local.subprocess.DEVNULL, TimeoutExpired=local.subprocess.TimeoutExpired
    )
    _Forked.main = worker.main
    points.install()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans come to us, so that we can wait for them


def _counted(step: Any, place: int) -> Any:
    """A step of an optimiser, or a layer of a scan, that is counted at its place in memory shared with the walk."""

    def counted(*given: Any, **named: Any) -> Any:
        value = step(*given, **named)
        struct.pack_into("<q", _made, place, struct.unpack_from("<q", _made, place)[0] + 1)
        return value

    return counted


def _pictured(savefig: Any) -> Any:
    """How a picture is written matters here, and not what it shows: only frames of a movie are drawn."""

    def saved(self: Any, target: Any, *, format: str, **named: Any) -> None:
        if format == "rgba":
            savefig(self, target, format=format, **named)
        else:
            target.write(f"a picture as {format}\n".encode() * 4000)

    return saved


def _drawn() -> SimpleNamespace:
    """In place of the converter, whose threads do not outlive a fork."""
    bytes_of = {kind: f"a picture as {kind}\n".encode() * 4000 for kind in ("png", "pdf")}
    return SimpleNamespace(
        vegalite_to_png=lambda *_, **__: bytes_of["png"],
        vegalite_to_pdf=lambda *_, **__: bytes_of["pdf"],
        vegalite_to_svg=lambda *_, **__: "a picture as svg\n" * 4000,
    )


class _Forked:
    """A worker as a fork of its driver, with the descriptors that a new interpreter would have."""

    main: Any = None

    def __init__(self, args: list[str], *, pass_fds: list[int], stdout: Any, **_: Any) -> None:
        self.returncode: int | None = None
        said = stdout.fileno()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                for number in (1, 2):
                    os.dup2(said, number)
                kept = sorted({0, 1, 2, *pass_fds, points.log_descriptor()})
                for low, high in zip(kept, [*kept[1:], 4096], strict=True):
                    os.closerange(low + 1, high)
                points.become("worker")
                sys.argv = ["worker", args[-1]]
                try:
                    type(self).main()
                except SystemExit as ended:
                    code = ended.code if isinstance(ended.code, int) else 1
                except BaseException:  # noqa: BLE001 - as an interpreter would
                    import traceback

                    traceback.print_exc()
                    code = 1
                sys.stderr.flush()
            finally:
                os._exit(code)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() > deadline:
                import subprocess

                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            else:
                time.sleep(0.002)
        return self.returncode

    def _signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every write point, every fault")
    parser.add_argument("--sample", type=int, default=60, help="so many faults, shared among the commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="names or patterns ('scan*') of commands, separated by ';'")
    given = parser.parse_args()
    wanted = (given.only or "*").split(";")
    chosen = [case for case in CASES if any(fnmatch.fnmatchcase(case.name, each) for each in wanted)]
    with tempfile.TemporaryDirectory(prefix="toposcope-walk-") as name:
        tally = walk_all(
            Walk(Path(name), chosen),
            chosen,
            None if given.all else given.sample,
            given.seed,
            say=lambda line: print(line, flush=True),
        )
        tempfile.tempdir = None
    shown = ", ".join(f"{count} {fault}" for fault, count in sorted(tally.faults.items()))
    print(f"{len(chosen)} commands, {tally.points} write points, {tally.faults.total()} faults ({shown})")
    print(f"losses: {len(tally.losses)}")
    raise SystemExit(bool(tally.losses))


if __name__ == "__main__":
    main()
