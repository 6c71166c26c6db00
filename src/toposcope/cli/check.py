"""`toposcope check MODEL`: is the positional encoding really there, in force, and of one kind?"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from toposcope.cli.common import (
    FamilyOption,
    HeadsOption,
    HtmlOption,
    JsonOption,
    ModelArgument,
    console,
    progress,
    safe,
)
from toposcope.core.printable import LONGEST_PATH, sentences

MARKS = {"ok": "[green]ok     [/green]", "warning": "[yellow]warning[/yellow]", "fault": "[red]fault  [/red]"}


def run(
    model: ModelArgument,
    family: FamilyOption = None,
    heads: HeadsOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as failure too.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Explain what is in order too.")] = False,
    json: JsonOption = None,
    html: HtmlOption = None,
) -> None:
    """Test a checkpoint's positional encoding; exit code 1 when a fault is found (with --strict, a warning)."""
    from toposcope.checkpoints import load
    from toposcope.checks import check_model
    from toposcope.core.results import emit_json, envelope, subject

    started = time.perf_counter()
    with load(model, family=family, heads=heads) as opened:
        with progress("checking layers", len(opened.layers)) as tick:
            report = check_model(opened, progress=lambda done, total: tick())
        about = subject(opened)
        skipped = opened.skipped
    result = envelope(
        "check",
        report.as_dict(),
        about=about,
        options={"family": family, "heads": heads, "strict": strict},
        seconds=time.perf_counter() - started,
        skipped=skipped,
    )
    if json:
        emit_json(result, json)
    if html:
        from toposcope.cli.pictures import title_of, write_pictures

        write_pictures([result], html, None, title=title_of(model, opened.path))
    if json != "-":
        out = console()
        out.print(f"[bold]{safe(about['path'], LONGEST_PATH)}[/bold] ({safe(about['family'])})", soft_wrap=True)
        for finding in report.findings:
            out.print(f"{MARKS[finding.status]} [bold]{safe(finding.title)}[/bold]")
            if verbose or finding.status != "ok":
                out.print(_indented(sentences(finding.explanation)), markup=False)
            if finding.what_to_do:
                out.print(_indented(sentences(f"What to do: {finding.what_to_do}")), markup=False)
        out.print(f"\n{report.verdict}")
        if html:
            out.print(f"Report: {html}")
    if report.worst == "fault" or (strict and report.worst == "warning"):
        raise typer.Exit(1)


def _indented(text: str) -> str:
    import shutil
    import textwrap

    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    return textwrap.fill(text, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
