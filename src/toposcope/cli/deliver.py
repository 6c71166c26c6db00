"""How a finished result reaches people and machines: the same for every command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toposcope.cli.common import console

if TYPE_CHECKING:
    from toposcope.core.progress import Progress
    from toposcope.core.result import Result
    from toposcope.report.console import IndentedConsole


def check_names(figure: str | None) -> None:
    """Complain about a figure's name, or a missing library, before the work and not after it."""
    if figure is not None:
        from toposcope.report.figure import check_name

        check_name(figure)


def deliver(
    result: Result,
    *,
    json: str | None = None,
    csv: str | None = None,
    html: str | None = None,
    figure: str | None = None,
    sarif: str | None = None,
    junit: str | None = None,
    table: str | None = None,
    beside: Sequence[Result] = (),
    written: Sequence[str | None] = (),
    full: bool | None = None,
) -> None:
    """Write what was asked for, then print the result, unless standard output is taken by '-'.

    `table` is the one that --csv writes; `sarif` and `junit` are files for findings; results `beside` this one stand
    in the page too; files `written` before are named too; in `full` the terminal shows all that the page does, else
    it names what --full would add (None: the command has no such option).
    """
    from toposcope.report import drawing, terminal

    if json:
        write(result.json(), json)
    if csv:
        write(result.csv(table=table), csv)
    if html:
        write(drawing.page([*beside, result], drawing.title(result)), html)
    if figure:
        result.figure(figure)
    if sarif or junit:
        from toposcope.checks.findings import CheckResult
        from toposcope.report import ci

        assert isinstance(result, CheckResult)
        for where, form in ((sarif, ci.sarif), (junit, ci.junit)):
            if where:
                write(form(result), where)
    if "-" in (json, csv, html, sarif, junit):
        return
    out = console()
    terminal.show(drawing.page_of([result]), out, full=bool(full), offer=full is False)
    for name in filter(None, (*written, json, csv, html, figure, sarif, junit)):
        out.print(f"Written: {name}", soft_wrap=True)


@contextmanager
def watched() -> Iterator[Progress | None]:
    """A progress callback that draws bars with the time left on standard error; None where nobody is watching.

    What is logged meanwhile is printed there too, a line each.
    """
    err = console(to_stderr=True)
    with _logged(err):
        if not sys.stderr.isatty():
            yield None
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            Task,
            TaskID,
            TextColumn,
            TimeRemainingColumn,
        )

        from toposcope.core.progress import FETCHING

        in_bytes = DownloadColumn()

        class Count(MofNCompleteColumn):
            def render(self, task: Task) -> Any:
                return in_bytes.render(task) if task.description.startswith(FETCHING) else super().render(task)

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            Count(),
            TimeRemainingColumn(compact=True),
        )
        # not redirected: rich would write its colours through our cleaned stream, as text
        with Progress(*columns, console=err, transient=True, redirect_stdout=False, redirect_stderr=False) as bars:
            known: dict[str, TaskID] = {}

            def tell(what: str, done: int, total: int) -> None:
                part = what.partition(": ")[0]
                if part not in known:
                    known[part] = bars.add_task(what, total=total)
                bars.update(known[part], completed=done, total=total, description=what, visible=done < total)

            yield tell


@contextmanager
def _logged(err: IndentedConsole) -> Iterator[None]:
    """Print what Toposcope logs, above any bars."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            err.print(self.format(record), soft_wrap=True, markup=False)

    log, handler = logging.getLogger("toposcope"), Lines(logging.INFO)
    level, passed_on = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = passed_on


def write(text: str, where: str) -> None:
    """Write to a file, or to standard output where that is called '-'."""
    if where == "-":
        sys.stdout.write(text)
    else:
        from toposcope.core.files import write_text

        write_text(Path(where), text)
