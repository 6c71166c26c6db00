"""`toposcope train`: one small model on one task, kept as a run that can be stopped and resumed at any time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toposcope.cli.common import HtmlOption, JsonOption, console, safe
from toposcope.cli.lab_words import (
    ProfileOption,
    QuirkOption,
    SetOption,
    StoreOption,
    ThreadsOption,
    VariantOption,
    changes,
    duration,
    percent,
    title,
)

if TYPE_CHECKING:
    from toposcope.lab.config import RunConfig
    from toposcope.runs.directory import Job

Watch = Callable[[Mapping[str, Any]], None]


def run(
    task: Annotated[
        str,
        typer.Option(
            "--task", metavar="NAME", help="distance, count, previous, copy, reverse, induction, index, dyck."
        ),
    ],
    encoding: Annotated[str, typer.Option("--encoding", metavar="NAME", help="'toposcope ls encodings' lists them.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of weights and sentences.")] = 0,
    profile: ProfileOption = "laptop-s",
    variant: VariantOption = "described",
    quirk: QuirkOption = None,
    settings: SetOption = None,
    threads: ThreadsOption = 1,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Keep the run here, outside any store.")
    ] = None,
    store: StoreOption = "runs",
    json: JsonOption = None,
    html: HtmlOption = None,
) -> None:
    """Train a small model on one task. Stopped or killed, it goes on where it was when called again."""
    from toposcope.runs.local import THREADS

    if "numpy" not in sys.modules:
        os.environ.update(dict.fromkeys(THREADS, str(threads)))
    from toposcope.cli.pictures import write_pictures
    from toposcope.core.results import emit_json, envelope
    from toposcope.core.sealed import SUM
    from toposcope.runs.grid import grid, jobs

    started = time.perf_counter()
    configs = grid([task], [encoding], [seed], profile=profile, variant=variant, changes=changes(settings, quirk))
    (config,), (job,) = configs, jobs(configs)
    import torch

    torch.set_num_threads(threads)
    with _watching(config) as watch:
        directory, result, new = _in_directory(Path(out), job, watch) if out else _in_store(store, job, watch)
    body = {key: value for key, value in result.items() if key not in ("schema", "toposcope", "seconds", SUM)}
    told = envelope(
        "train",
        {**body, "directory": str(directory), "trained_now": new, "training_seconds": result["seconds"]},
        about=None,
        options={"store": None if out else store, "out": out, "threads": threads},
        seconds=time.perf_counter() - started,
    )
    if json:
        emit_json(told, json)
    written = write_pictures([told], html, None, title=title(config.as_dict()))
    if json != "-":
        _print(config, result, directory, new)
        for name in written:
            console().print(f"Written: {name}", soft_wrap=True)


def _in_store(store: str, job: Job, watch: Watch) -> tuple[Path, dict[str, Any], bool]:
    from toposcope.core.errors import BadValue
    from toposcope.runs.queue import BEAT
    from toposcope.runs.store import Busy, Finished, Store

    with Store(store) as opened:
        directory = opened.directory(job.key)
        for patience in range(5):  # a repair looks at locks for an instant
            claim = opened.claim(job)
            if not isinstance(claim, Busy):
                break
            time.sleep(0.1 * (patience + 1))
        if isinstance(claim, Finished):
            return directory, claim.result, False
        if not isinstance(claim, Busy) and claim.remark:
            sys.stderr.write(f"toposcope: {claim.remark} It is done now.\n")
        if isinstance(claim, Busy):
            raise BadValue(
                f"this run ({job.key}) is being worked on by process {claim.owner}. Wait for it, or stop it: this "
                "command then goes on where it was."
            )
        beat = time.monotonic()

        def report(data: Mapping[str, Any]) -> None:
            nonlocal beat
            if time.monotonic() - beat > BEAT:
                beat = time.monotonic()
                opened.beat(job.key)
            watch(data)

        try:
            _work(job, directory, report)
        except BaseException as error:
            if isinstance(error, Exception) and not _full(error):
                opened.fail(claim, str(error))
            else:
                opened.release(claim)
            raise
        return directory, opened.finish(claim), True


def _in_directory(directory: Path, job: Job, watch: Watch) -> tuple[Path, dict[str, Any], bool]:
    from toposcope.core.errors import BadFile, BadValue
    from toposcope.core.untrusted import require_plain
    from toposcope.lab.saved import WRITTEN
    from toposcope.runs import lock
    from toposcope.runs.directory import read_job, read_result, tidy, write_job
    from toposcope.runs.store import said_plainly

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
            _work(job, directory, watch)
            result = read_result(directory, job)
        finally:
            held.close()
    if result is None:
        raise BadFile(f"{directory} holds no result that can be read. Give the command again.")
    return directory, result, new


def _work(job: Job, directory: Path, report: Watch) -> None:
    """Train, stopping between two steps when asked to."""
    from toposcope.runs.jobs import work
    from toposcope.runs.local import stop_signals
    from toposcope.runs.store import full

    with stop_signals() as stopped:

        def step(data: Mapping[str, Any]) -> None:
            if stopped.is_set():
                raise KeyboardInterrupt
            report(data)

        try:
            work(job.kind)(job.config, directory, step)
        except KeyboardInterrupt:
            sys.stderr.write("toposcope: stopped; the same command goes on from the last checkpoint\n")
            raise
        except Exception as error:
            if _full(error):
                raise full(directory) from error
            raise


def _full(error: BaseException) -> bool:
    from toposcope.runs.store import disk_is_full

    return disk_is_full(error)


@contextmanager
def _watching(config: RunConfig) -> Iterator[Watch]:
    """A line with accuracy, floor, ceiling and the time left, where a person is watching."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    task = config.make_task()
    bounds = f"floor {100 * task.floor:.1f}, ceiling {100 * task.ceiling.value:.1f}"
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(to_stderr=True), transient=True) as bar:
        line = bar.add_task(f"accuracy    - ({bounds})", total=config.settings["steps"])

        def watch(data: Mapping[str, Any]) -> None:
            seen = "   -" if data["accuracy"] is None else f"{100 * data['accuracy']:.1f}"
            bar.update(line, completed=data["step"], description=f"accuracy {seen} ({bounds})")

        yield watch


def _print(config: RunConfig, result: Mapping[str, Any], directory: Path, new: bool) -> None:
    out = console()
    out.print(f"[bold]{safe(title(config.as_dict()))}[/bold]  ({config.profile}, {config.variant})", soft_wrap=True)
    bounds = f"floor {percent(result['floor'])}, ceiling {percent(result['ceiling'])}"
    out.print(f"accuracy {percent(result['accuracy'])}  ({bounds})  loss {result['loss']:.3g}")
    points = result["curve"][1::2]  # half of the twenty: they fit on a line
    trail = " ".join(f"{100 * point['accuracy']:.0f}" for point in points)
    out.print(f"on the way {trail}")
    when = "trained in" if new else "trained earlier, in"
    out.print(f"{result['steps']} steps, {result['parameters']:,} parameters, {when} {duration(result['seconds'])}")
    out.print(f"run {result['key']} in {directory}", soft_wrap=True)
    out.print(f"the model, for scan, check and the others: {directory / 'model'}", soft_wrap=True)
