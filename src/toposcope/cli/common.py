"""What commands share: options, the console, progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toposcope.core.printable import LONGEST, printable

if TYPE_CHECKING:
    from toposcope.report.console import IndentedConsole

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Directory, file, org/name on the hub, or a name from 'ls models'.", show_default=False
    ),
]
FamilyOption = Annotated[
    str | None, typer.Option("--family", metavar="NAME", help="Read it as this family ('toposcope ls families').")
]
AdapterOption = Annotated[
    str | None, typer.Option("--adapter", metavar="DIR|NAME", help="Merge this adapter of PEFT (LoRA, DoRA).")
]
NumHeadsOption = Annotated[
    int | None, typer.Option("--num-heads", metavar="N", min=1, help="Number of heads, where the file does not say.")
]
HeadsOption = Annotated[
    int | None, typer.Option("--heads", metavar="N", min=1, help="Number of heads, where the file does not say.")
]
LayersOption = Annotated[str | None, typer.Option("--layers", metavar="0-3,7", help="Only these layers.")]
WeightsOption = Annotated[
    bool, typer.Option("--weights/--no-weights", help="Without, only configuration, headers and position tables.")
]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the result as JSON ('-': standard output).")
]
CsvOption = Annotated[str | None, typer.Option("--csv", metavar="FILE|-", help="Write the table as CSV.")]
HtmlOption = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a self-contained HTML report.")]
FullOption = Annotated[
    bool, typer.Option("--full", "--head-table", help="Print everything, every head included, not only the answer.")
]

SarifOption = Annotated[
    str | None, typer.Option("--sarif", metavar="FILE|-", help="Write the findings as SARIF, for code scanning.")
]
JunitOption = Annotated[
    str | None, typer.Option("--junit", metavar="FILE|-", help="Write the findings as JUnit XML, for test reports.")
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda[:n]|mps", help="Where the model runs (auto: a GPU if any).")
]
DtypeOption = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option("--dtype", help="Precision (auto: the files' on a GPU, float32 on the CPU)."),
]
DeviceMapOption = Annotated[
    Literal["auto"] | None, typer.Option("--device-map", help="Spread the model over all devices.")
]
BatchOption = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Sequences that run together.")]

FigureOption = Annotated[
    str | None, typer.Option("--figure", metavar="FILE", help="Draw a figure for a paper: .pdf, .svg or .png.")
]


def console(*, to_stderr: bool = False) -> IndentedConsole:
    """A console for tables; plain where the output is not a terminal."""
    from toposcope.report.console import IndentedConsole

    return IndentedConsole(stderr=to_stderr, highlight=False, soft_wrap=False)


def safe(words: object, most: int = LONGEST) -> str:
    """A name from a file, a path or a store, to stand in a line for the console: shown, never obeyed."""
    from toposcope.report.console import literal

    return literal(printable(words, most))
