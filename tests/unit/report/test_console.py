"""Long lines on a narrow terminal."""

from __future__ import annotations

import io

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
