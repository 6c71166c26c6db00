"""The command line: one file per command, imported only when that command is called."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

TRACEBACK = "TOPOSCOPE_TRACEBACK"  # an environment variable: with it, a bug shows where it comes from

GROUPS = {
    "From weights": ("check", "inspect", "scan", "spectrum", "flow", "compare"),
    "On a text": ("trace", "ablate", "loss"),
    "Laboratory": ("train", "sweep", "runs", "reproduce", "refine"),
    "Share": ("report", "serve", "ls"),
}  # what 'toposcope --help' lists; the other commands exist too
COMMANDS = {
    "ablate": "Which heads does a model need? Remove them one by one.",
    "bench": "Speed and memory as ratios, in a checkout.",
    "check": "Is the positional encoding really there and in force?",
    "cite": "What to cite, as text or BibTeX.",
    "compare": "Two checkpoints head by head: what did tuning change?",
    "explain": "What brings an error about, and what helps.",
    "flow": "Let tokens flow under a model's weights, and watch.",
    "inspect": "Show a checkpoint's architecture, encoding and heads.",
    "loss": "What a text costs, and under another encoding.",
    "ls": "List known models, families, encodings or tasks.",
    "refine": "Add a diagonal to a rotary model, tune it, compare.",
    "report": "Stored results as one HTML file to send around.",
    "reproduce": "Do the papers' claims hold? Train, measure, judge.",
    "runs": "List, show, remove or export finished and open runs.",
    "scan": "Where do these weights drive the tokens, head by head?",
    "schema": "The JSON Schema of what --json writes, by name.",
    "serve": "Explore encodings, flow, heads and runs in a browser.",
    "spectrum": "Spectra of positional kernels, at any context.",
    "sweep": "Train many small models: which encoding learns what?",
    "train": "Train one small model on one task, and measure it.",
    "trace": "What heads do on a real text: position and patterns.",
}
EXAMPLES = {
    "ablate": "toposcope ablate minilm --tokens 64 --sequences 2",
    "bench": "toposcope bench",
    "check": "toposcope check smollm2 --verbose",
    "cite": "toposcope cite --bibtex",
    "compare": "toposcope compare rxnfp/bert_pretrained rxnfp/bert_ft",
    "explain": "toposcope explain BadFile",
    "flow": "toposcope flow smollm2 --head 3.2 --html flow.html",
    "inspect": "toposcope inspect smollm2 --layers 0-3",
    "loss": "toposcope loss smollm2 --encoding none --sequences 2",
    "ls": "toposcope ls encodings",
    "refine": "toposcope refine smollm2 --out refined --steps 20",
    "report": "toposcope check smollm2 --json c.json && toposcope report c.json",
    "reproduce": "toposcope reproduce dynamics --size facts",
    "runs": "toposcope train --task distance --encoding rope && toposcope runs",
    "scan": "toposcope scan smollm2 --layers 0-3 --html scan.html",
    "schema": "toposcope schema check",
    "serve": "toposcope serve smollm2 --open",
    "spectrum": "toposcope spectrum rope alibi --context 4096",
    "sweep": "toposcope sweep --tasks distance --encodings rope,none --seeds 2",
    "train": "toposcope train --task distance --encoding rope",
    "trace": "toposcope trace smollm2 --layers 0-3 --sequences 2",
}
# options that had another name in 0.1: they still answer
FORMER_OPTIONS = {
    "check": {"--heads": "--num-heads"},
    "compare": {"--heads": "--num-heads"},
    "inspect": {"--heads": "--num-heads"},
    "scan": {"--heads": "--num-heads", "--null": "--random-baseline", "--what-if": "--encoding"},
}
FORMER_COMMANDS = {"beside": "trace MODEL --depth, or --verify for its verdicts"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command named on the command line. Exit codes: 0 done, 1 what was asked did not hold, 2 wrong input.

    3: a bug of ours. 130 and 143: interrupted by SIGINT or SIGTERM.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    from toposcope.core.errors import BadValue, ToposcopeError, did_you_mean
    from toposcope.core.printable import sentences

    with _mouths():
        try:
            called = next((word for word in given if not word.startswith("-")), None)
            if called in FORMER_COMMANDS:
                raise BadValue(f"'{called}' is now: toposcope {FORMER_COMMANDS[called]}.")  # noqa: TRY301
            if called is not None and called not in COMMANDS:
                raise BadValue(f"unknown command '{called}'. {did_you_mean(called, COMMANDS)}")  # noqa: TRY301
            app = _application(called)
            given = [_present_name(word, FORMER_OPTIONS.get(called or "", {})) for word in given]
            with _gentle_end():
                app(args=given, prog_name="toposcope", standalone_mode=True)
        except ToposcopeError as error:
            more = f"\n  (more: toposcope explain {type(error).__name__})"
            words = sentences(error, keep="")  # one paragraph: a name with a line end cannot add lines of its own
            sys.stderr.write(f"toposcope: {words}{more}\n")
            raise SystemExit(2) from None
        except BrokenPipeError:  # the reader of a pipe went away: not our failure
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None
        except KeyboardInterrupt:
            sys.stderr.write("toposcope: interrupted\n")
            raise SystemExit(130) from None
        except Exception as error:
            if os.environ.get(TRACEBACK):
                raise
            code, words = _last_resort(error)
            sys.stderr.write(words)
            raise SystemExit(code) from None


def _present_name(word: str, former: Mapping[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{former[name]}{equals}{value}" if name in former else word


@contextmanager
def _mouths() -> Iterator[None]:
    """Whoever prints, ourselves, typer, warnings, loggers: what reaches the terminal is text."""
    from toposcope.core.printable import Mouth, sentences

    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Mouth(sys.stdout), Mouth(sys.stderr, sentences)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _last_resort(error: Exception) -> tuple[int, str]:
    """The exit code and a paragraph for what was not foreseen: what, where, what to do."""
    import traceback
    from pathlib import Path

    from toposcope.core.plugins import at_fault

    ours = [each for each in traceback.extract_tb(error.__traceback__) if "toposcope" in each.filename]
    where = f" ({Path(ours[-1].filename).name}, line {ours[-1].lineno})" if ours else ""
    words = f"{type(error).__name__}: {error}{where}"
    package = at_fault(error)
    if package is not None:
        return 2, f"toposcope: the plug-in of {package} failed: {words}.\n  Its authors can mend it; we cannot.\n"
    if isinstance(error, MemoryError):
        cause = "the memory of this machine does not suffice, which should have been foreseen"
    elif isinstance(error, ArithmeticError) or type(error).__name__ == "LinAlgError":
        cause = "numbers here are too large or too small to compute with, which should have been noticed earlier"
    else:
        cause = "this is a bug in Toposcope"
    return 3, f"toposcope: {cause}: {words}.\n  Please report it with the command; {TRACEBACK}=1 shows more.\n"


@contextmanager
def _gentle_end() -> Iterator[None]:
    """SIGTERM unwinds the work, as Ctrl-C does, so that half-written files are removed; exit code 143."""

    def stop(*_: object) -> None:
        raise SystemExit(143)

    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _application(called: str | None) -> Callable[..., None]:
    """The typer application with the called command in full and all others as one line of help each."""
    import typer

    app = typer.Typer(
        cls=_grouped(),
        help="Toposcope shows what positional encoding does to the tokens of a Transformer.",
        epilog="MODEL is a directory, a .safetensors, .gguf or torch file, org/name on the hub, or a name from "
        "'toposcope ls models'.\n",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: the rich one costs half of the start-up
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            from toposcope._version import __version__

            typer.echo(f"toposcope {__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", help="Print the version and stop.", is_eager=True, callback=show_version
        ),
    ) -> None:
        pass

    for name, summary in COMMANDS.items():
        if name == called:
            run = importlib.import_module(f"toposcope.cli.{name}").run
            app.command(name, short_help=summary, epilog=f"Example: {EXAMPLES[name]}")(run)
        else:
            app.command(name, help=summary)(_placeholder)
    return app


def _grouped() -> Any:
    """The class of the application: its help lists commands in groups, with an example each."""
    from typer.core import TyperGroup

    class CommandGroups(TyperGroup):
        def format_commands(self, ctx: Any, formatter: Any) -> None:
            for group, names in GROUPS.items():
                with formatter.section(group):
                    formatter.write_dl([(f"{name:9s}", COMMANDS[name]) for name in names])
                    formatter.write_text(f"$ {EXAMPLES[names[0]]}")

    return CommandGroups


def _placeholder() -> None:
    """Stands for a command that was not called."""
