"""Long lines on a narrow terminal."""

from __future__ import annotations

import io

import pytest

from toposcope.report.console import IndentedConsole


def printed(line: str, **options: bool) -> list[str]:
    out = io.StringIO()
    IndentedConsole(file=out, width=30, highlight=False).print(line, **options)
    return out.getvalue().splitlines()


def test_a_wrapped_line_keeps_its_indent() -> None:
    lines = printed("  one two three four five six seven eight")
    assert [line.rstrip() for line in lines] == ["  one two three four five six", "  seven eight"]


def test_short_lines_and_markup_are_as_before() -> None:
    assert printed("  [bold]short[/bold]") == ["  short"]
    assert [line.rstrip() for line in printed("  [bold]one two three four[/bold] five six")] == [
        "  one two three four five six",
    ]


def test_a_line_that_asks_not_to_be_wrapped_is_not() -> None:
    assert len(printed("  " + "word " * 20, soft_wrap=True)) == 1


@pytest.mark.parametrize("line", ["word " * 30, "  " + "words " * 30, "    first\n" + "second " * 20])
def test_no_line_ends_in_blanks_where_it_was_broken(line: str) -> None:
    out = io.StringIO()
    IndentedConsole(file=out, width=40, highlight=False).print(line.rstrip())
    lines = out.getvalue().splitlines()
    assert len(lines) > 2
    assert all(each == each.rstrip() and len(each) <= 40 for each in lines)
    assert " ".join(out.getvalue().split()) == " ".join(line.split())
