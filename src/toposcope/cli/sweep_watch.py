"""What a person sees of a sweep while it runs: a line for every run that ends, a bar for every run under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toposcope.cli.lab_words import cut, duration, percent, title

if TYPE_CHECKING:
    from rich.console import Console

    from toposcope.lab.config import RunConfig
    from toposcope.runs.queue import Event
    from toposcope.studies.language.config import ProbeConfig


class Watcher:
    """Called with every event of a queue. Bars only on a terminal; lines everywhere, on standard error."""

    def __init__(self, log: Console, configs: Sequence[RunConfig] | Sequence[ProbeConfig]) -> None:
        self._log, self._all, self._ended = log, len(configs), 0
        self._steps = {config.key(): int(config.settings["steps"]) for config in configs}
        self._reached: dict[str, int] = {}
        self._bars: dict[str, Any] = {}
        self._progress: Any = None
        if log.is_terminal:
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=16),
                TaskProgressColumn(),
                TimeRemainingColumn(compact=True),
            )
            self._progress = Progress(*columns, console=log, transient=True, speed_estimate_period=120)
            self._total = self._progress.add_task("all runs", total=sum(self._steps.values()))

    def __enter__(self) -> Watcher:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the bars away."""
        if self._progress:
            self._progress.stop()

    def __call__(self, event: Event) -> None:
        job, data = event.job, event.data
        if event.what == "started" and "words" in data:
            self._say(f"again      {title(job.config)}: {data['words']}")
        if event.what == "started" and self._progress:
            self._bars[job.key] = self._progress.add_task(self._label(event), total=self._steps[job.key])
        elif event.what == "progress":
            self._reach(job.key, int(data["step"]))
            if job.key in self._bars:
                self._progress.update(self._bars[job.key], completed=data["step"], description=self._label(event))
        elif event.what == "elsewhere":
            self._say(f"waits for  {title(job.config)}: process {data['owner']} has it")
        elif event.what == "retried":
            self._drop(job.key)
            why = str(data["words"]).strip().splitlines()[0]
            self._say(f"again      {title(job.config)}: {why}")
        elif event.what in ("done", "found", "failed"):
            self._drop(job.key)
            self._reach(job.key, self._steps[job.key])
            self._ended += 1
            if event.what == "failed":
                why = str(data["words"]).strip().splitlines()[-1]
                self._say(f"{self._count()} {title(job.config)}: failed: {why}")
            elif event.what == "done":
                took = duration(data.get("seconds"))
                self._say(f"{self._count()} {title(job.config)}: {percent(data.get('accuracy'))} in {took}")

    def _count(self) -> str:
        return f"{self._ended:{len(str(self._all))}d}/{self._all}"

    def _label(self, event: Event) -> str:
        seen = event.data.get("accuracy")
        accuracy = "      " if seen is None else f"{100 * seen:5.1f}%"
        return f"{cut(title(event.job.config), 36):36s} {accuracy}"

    def _say(self, text: str) -> None:
        self._log.print(text, soft_wrap=True, markup=False)

    def _reach(self, key: str, step: int) -> None:
        """Move the bar of all runs: a run that begins again at a checkpoint moves it back."""
        self._reached[key] = step
        if self._progress:
            self._progress.update(self._total, completed=sum(self._reached.values()))

    def _drop(self, key: str) -> None:
        if key in self._bars:
            self._progress.remove_task(self._bars.pop(key))
