"""The command line: one file per command, imported only when that command is called."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toposcope.cli.overview import COMMANDS, EXAMPLES, overview, version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

TRACEBACK = "TOPOSCOPE_TRACEBACK"  # an environment variable: with it, a bug shows where it comes from

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
    if given[:1] in ([], ["-h"], ["--help"], ["--version"]):  # at once: typer alone takes a tenth of a second
        sys.stdout.write(version() if given[:1] == ["--version"] else overview())
        raise SystemExit(0 if given else 2)
    from toposcope.core.errors import BadValue, ToposcopeError, did_you_mean
    from toposcope.core.printable import sentences

    with _mouths():
        try:
            called = given[0]
            if called in FORMER_COMMANDS:
                raise BadValue(f"'{called}' is now: toposcope {FORMER_COMMANDS[called]}.")  # noqa: TRY301
            if called.startswith("-"):
                words = f"'{called}' stands before the command; options follow it: toposcope COMMAND {called}."
                raise BadValue(words)  # noqa: TRY301
            if called not in COMMANDS:
                raise BadValue(f"unknown command '{called}'. {did_you_mean(called, COMMANDS)}")  # noqa: TRY301
            app = _application(called)
            given = [_present_name(word, FORMER_OPTIONS.get(called, {})) for word in given]
            with _gentle_end():
                app(args=given, prog_name="toposcope", standalone_mode=True)
        except ToposcopeError as error:
            more = f"\n  (more: toposcope explain {type(error).__name__})"
            words = sentences(error, keep="")  # one paragraph: a name with a line end cannot add lines of its own
            sys.stderr.write(f"{_wrapped(f'toposcope: {words}')}{more}\n")
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


def _wrapped(words: str) -> str:
    """Words in lines that fit a terminal; a quoted command stays in one line, to be pasted. Elsewhere, one line."""
    if not sys.stderr.isatty():
        return words
    import re
    import shutil
    import textwrap

    kept = re.sub(r"(?:pip install )?(?<!\w)'[^']{1,70}'(?!\w)", lambda found: found[0].replace(" ", "\0"), words)
    width = min(shutil.get_terminal_size().columns, 100)
    lines = textwrap.wrap(kept, max(width, 40), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


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


def _application(called: str) -> Callable[..., None]:
    """The typer application, of which only the called command is imported."""
    import typer

    from toposcope.cli.plain_help import PlainHelp

    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: the rich one costs half of the start-up
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(lambda: None)  # with it, the command keeps its name though it is the only one
    run = importlib.import_module(f"toposcope.cli.{called}").run
    app.command(called, cls=PlainHelp, epilog=f"Example: {EXAMPLES[called]}")(run)
    return app
