"""Who draws results. Renderers stand on a higher floor than results; the package names them here when imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `import toposcope` comes through here, and should cost nothing
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any, Protocol

    from toposcope.core.result import Result

    class Drawing(Protocol):
        """What turns results into something to look at: `toposcope.report.drawing`."""

        def text(self, result: Result) -> str:
            """For a terminal of 80 columns."""

        def page(self, results: Sequence[Result], title: str | None = None) -> str:
            """One self-contained HTML file."""

        def fragment(self, result: Result) -> str:
            """For a notebook, without script."""

        def draw(self, result: Result, path: str | Path) -> Path:
            """A figure for a paper, written to a file."""

        def widget(self, result: Result) -> Any:
            """The head map and the attention of a result, as a widget for a notebook."""

        def movie(self, result: Result, path: str | Path) -> Path:
            """An animated picture of a flow, written to a file."""


_sources: list[Callable[[], Drawing]] = []


def draw_with(source: Callable[[], Drawing]) -> None:
    """Say where the renderers are; they are imported when the first result is drawn."""
    _sources[:] = [source]


def drawing() -> Drawing:
    """The renderers."""
    return _sources[0]()
