"""What a person sees while a command works: bars that are drawn, not written out, and lines above them."""

from __future__ import annotations

import io
import logging

import pytest

from toposcope.cli import _mouths
from toposcope.cli.deliver import watched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_and_lines(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    log = logging.getLogger("toposcope.runs")
    with _mouths(), watched() as progress:
        assert (progress is not None) is terminal
        if progress is not None:
            progress("all runs", 0, 4)
            progress("distance  rope:base=500: 43.1%", 1, 2)
            progress("distance  rope:base=500: 50.0%", 2, 2)
        log.info("1/2 distance: [red]done[/red] \x1b[2J")
    log.info("after it")
    said = out.getvalue()
    assert ("43.1%" in said) is terminal
    assert ("\x1b[" in said) is terminal, "colours and cursor moves are obeyed"
    assert said.count("\\x1b") == 1, "those of a line from elsewhere are not"
    assert "[red]done[" in said
    assert "after it" not in said
    assert not logging.getLogger("toposcope").handlers
