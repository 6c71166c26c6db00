"""`toposcope.train`: one small model on one task, kept as a run that can be stopped and resumed at any time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from toposcope.core.cluster import stop_signals
from toposcope.core.errors import BadFile, BadValue
from toposcope.core.progress import Progress, silent
from toposcope.core.result import Provenance
from toposcope.core.untrusted import require_plain
from toposcope.lab.result import WRITTEN, TrainResult
from toposcope.models.device import chosen_device, memory_told
from toposcope.runs import lock
from toposcope.runs.directory import read_job, read_result, tidy, write_job
from toposcope.runs.grid import changes, grid, jobs
from toposcope.runs.jobs import Job, Report, work
from toposcope.runs.queue import BEAT
from toposcope.runs.store import Busy, Finished, Store, disk_is_full, full, said_plainly
from toposcope.runs.words import percent, title

log = logging.getLogger("toposcope.runs")


def train(
    task: str,
    encoding: str,
    *,
    seed: int = 0,
    profile: str = "laptop-s",
    variant: str = "described",
    quirks: Sequence[str] = (),
    settings: Mapping[str, Any] | Sequence[str] = (),
    threads: int = 1,
    device: str = "cpu",
    out: str | Path | None = None,
    store: str | Path = "runs",
    progress: Progress | None = None,
) -> TrainResult:
    """Train a small model on one task. Stopped or killed, it goes on where it was when called again.

    `toposcope ls tasks` and `toposcope ls encodings` list the names; `profile` is its size and training (laptop-s,
    laptop-m, published, paper). `variant` "published" has the quirks of the released scripts, and `quirks` switches
    single ones on, or off with a minus before them. `settings` changes the profile: {"steps": 200} or ["steps=200"];
    "task.between" is a parameter of the task. The run is kept in `store`, or in the directory `out`. Other numbers of
    `threads`, and other devices, change the last digits: `device` is cpu, cuda, cuda:1, mps or auto.
    """
    started = time.perf_counter()
    asked = {
        "task": task, "encoding": encoding, "seed": seed, "profile": profile, "variant": variant,
        "quirks": list(quirks), "settings": settings if isinstance(settings, Mapping) else list(settings),
        "threads": threads, "device": device, "out": None if out is None else str(out),
        "store": None if out else str(store),
    }  # fmt: skip
    configs = grid([task], [encoding], [seed], profile=profile, variant=variant, changes=changes(settings, quirks))
    (config,), (job,) = configs, jobs(configs)
    bounds = config.make_task()
    words = f"floor {percent(bounds.floor)}, ceiling {percent(bounds.ceiling.value)}"
    tell = progress or silent

    def report(data: Mapping[str, Any]) -> None:
        tell(f"{title(job.config)}: {percent(data['accuracy'])} right ({words})", data["step"], data["steps"])

    there = "cpu" if device == "cpu" else chosen_device(device)
    with _threads(threads):
        if out is not None:
            directory, found, new = _in_directory(Path(out), job, report, there)
        else:
            directory, found, new = _in_store(store, job, report, there)
    return replace(
        TrainResult.from_dict(found, str(directory)),
        directory=str(directory),
        trained_now=new,
        provenance=Provenance(options=asked, seconds=time.perf_counter() - started),
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads of torch for as long as the work lasts."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_store(store: str | Path, job: Job, report: Report, device: str) -> tuple[Path, dict[str, Any], bool]:
    with Store(store) as opened:
        directory = opened.directory(job.key)
        for patience in range(5):  # a repair looks at locks for an instant
            claim = opened.claim(job)
            if not isinstance(claim, Busy):
                break
            time.sleep(0.1 * (patience + 1))
        if isinstance(claim, Finished):
            return directory, claim.result, False
        if isinstance(claim, Busy):
            raise BadValue(
                f"this run ({job.key}) is being worked on by process {claim.owner}. Wait for it, or stop it: the "
                "same call then goes on where it was."
            )
        if claim.remark:
            log.warning("%s It is done now.", claim.remark)
        beat = time.monotonic()

        def beating(data: Mapping[str, Any]) -> None:
            nonlocal beat
            if time.monotonic() - beat > BEAT:
                beat = time.monotonic()
                opened.beat(job.key)
            report(data)

        try:
            _work(job, directory, beating, device)
        except BaseException as error:
            if isinstance(error, Exception) and not disk_is_full(error):
                opened.fail(claim, str(error))
            else:
                opened.release(claim)
            raise
        return directory, opened.finish(claim), True


def _in_directory(directory: Path, job: Job, report: Report, device: str) -> tuple[Path, dict[str, Any], bool]:
    with said_plainly(directory):
        directory.mkdir(parents=True, exist_ok=True)
        held = lock.take(directory, lock.here())
        if held is None:
            raise BadValue(
                f"{directory} is being worked on by process {lock.holder(directory)}. Wait for it, or stop it."
            )
        try:
            there = read_job(directory)
            if there is not None and there.key != job.key:
                raise BadValue(
                    f"{directory} holds another run ({title(there.config)}, {there.key}). Give each its own."
                )
            require_plain(directory, WRITTEN)
            tidy(directory)
            write_job(directory, job)
            new = read_result(directory, job) is None
            _work(job, directory, report, device)
            result = read_result(directory, job)
        finally:
            held.close()
    if result is None:
        raise BadFile(f"{directory} holds no result that can be read. Give the command again.")
    return directory, result, new


def _work(job: Job, directory: Path, report: Callable[[Mapping[str, Any]], None], device: str) -> None:
    """Train, stopping between two steps when asked to."""
    with stop_signals() as stopped:

        def step(data: Mapping[str, Any]) -> None:
            if stopped.is_set():
                raise KeyboardInterrupt
            report(data)

        try:
            with memory_told(None):
                work(job.kind)(job.config, directory, step, device=device)
        except KeyboardInterrupt:
            log.warning("stopped; the same command goes on from the last checkpoint")
            raise
        except Exception as error:
            if disk_is_full(error):
                raise full(directory) from error
            raise
