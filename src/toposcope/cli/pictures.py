"""What commands share that write pictures: `--html` and `--figure`, both drawn from the finished result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toposcope.core.result import Result


def checked_figure(figure: str | None) -> None:
    """Complain about a figure's name, or about missing matplotlib, before the work and not after it."""
    if figure is not None:
        from toposcope.report.figure_old import check_name

        check_name(figure)


def write_pictures(
    results: Sequence[Mapping[str, Any] | Result], html: str | None, figure: str | None, *, title: str | None = None
) -> list[str]:
    """Write the report of all results and the figure of the last one, where asked for; say what was written."""
    written = []
    if html:
        from toposcope.report import write_report

        write_report(html, results, title=title)
        written.append(html)
    if figure:
        from toposcope.report.figure_old import draw

        last = results[-1]
        if isinstance(last, Mapping):
            draw(last, figure)
        else:
            last.figure(figure)
        written.append(figure)
    return written


def title_of(given: str, path: Path) -> str:
    """The name the user knows a model by."""
    return path.name if Path(given).exists() or given == path.name else f"{given} ({path.name})"
