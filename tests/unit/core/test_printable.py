"""Words from elsewhere: shown, shortened, never obeyed."""

from __future__ import annotations

import io
import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from toposcope.cli.common import safe
from toposcope.core.printable import Mouth, printable, sentences, visible
from toposcope.report.console import IndentedConsole

TAGS = ("[bold]", "[/bold]", "[red]", "[/red]", "[dim]", "[link=x]", "[/]", "[@click=x]", "\\[bold]", "\\")
PIECES = st.lists(
    st.sampled_from((*TAGS, "\x1b[2J", "\r", "\u202e", "a", " ", ":rocket:")) | st.text(max_size=3), max_size=8
)


def obeyed(text: str) -> bool:
    return any(each not in "\n\t" and unicodedata.category(each) in ("Cc", "Cf", "Cs") for each in text)


def printed(*objects: object, **options: bool) -> str:
    out = io.StringIO()
    IndentedConsole(file=out, width=400, highlight=False).print(*objects, **options)
    return out.getvalue()


@given(st.text(st.characters()))
def test_nothing_that_is_not_seen_passes(words: str) -> None:
    assert not obeyed(printable(words))
    assert "\n" not in printable(words)
    assert not obeyed(sentences(words))
    assert not obeyed(visible(words))


@given(st.integers(0, 10_000), st.integers(20, 500))
def test_names_and_texts_have_a_longest(length: int, most: int) -> None:
    assert len(printable("x" * length, most)) <= most
    assert len(sentences("x " * length, most)) <= most
    assert len(sentences("x" * length, most=5000, word=most)) <= most


def test_letters_of_all_scripts_stay_as_they_are() -> None:
    words = "modèle 模型 مدل µ–ν² [1, 2] C:\\x $x$"
    assert printable(words) == sentences(words) == visible(words) == words
    assert sentences("a\n\tb") == "a\n\tb"


@given(PIECES)
def test_no_words_are_wrong_markup_and_names_come_out_as_they_are(pieces: list[str]) -> None:
    words = "".join(pieces)
    printed(words)  # whatever a caller forgot
    name = printable(words)
    out = printed(f"[bold]{safe(words)}[/bold]", soft_wrap=True)
    assert out == f"{name}\n"


@pytest.mark.parametrize(
    "make", [lambda words: words, Text, lambda words: _table(words)], ids=["string", "text", "table"]
)
def test_no_way_into_the_console_lets_escapes_through(make: object) -> None:
    out = printed(make("a\x1b]0;x\x07b\x9b2Jc\u202ed"))  # type: ignore[operator]
    assert not obeyed(out)
    assert "\\x1b]0" in out


def _table(words: str) -> Table:
    made = Table(title=words)
    made.add_column(words)
    made.add_row(words)
    return made


def test_our_own_tags_are_obeyed() -> None:
    out = io.StringIO()
    IndentedConsole(file=out, force_terminal=True, color_system="standard").print(
        "[bold]a[/bold] [red]b[/red] [x]c[/x]"
    )
    assert out.getvalue() == "\x1b[1ma\x1b[0m \x1b[31mb\x1b[0m [x]c[/x]\n"


def test_a_stream_behind_a_mouth_gets_text() -> None:
    below = io.StringIO()
    mouth = Mouth(below)
    print("a\x1b[2Jb", "c\u202ed", file=mouth)  # type: ignore[call-overload]
    mouth.writelines(["e\x07", "f\n"])
    assert below.getvalue() == "a\\x1b[2Jb c\\u202ed\ne\\x07f\n"
    assert mouth.isatty() is False
    IndentedConsole(file=mouth, force_terminal=True, color_system="standard").print("[bold]g[/bold]")
    assert "\x1b[1mg\x1b[0m" in below.getvalue(), "colours go to the stream itself"


@pytest.mark.parametrize("clean", [visible, sentences])
def test_a_mouth_takes_text_alone(clean: Callable[[str], str]) -> None:
    below = io.StringIO()
    with pytest.raises(TypeError):
        Mouth(below, clean).write(b"")  # type: ignore[arg-type]
    assert below.getvalue() == ""


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    from toposcope.cli import main

    with pytest.raises(SystemExit):
        main([])
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert len(lines) > 20
    assert any(line.split()[:1] == ["scan"] for line in lines)


def test_the_streams_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    from toposcope.cli import main

    before = sys.stdout, sys.stderr
    with pytest.raises(SystemExit):
        main(["--version"])
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out.startswith("toposcope ")
