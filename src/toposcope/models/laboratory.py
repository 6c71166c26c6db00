"""Who opens the small models of the laboratory: it stands on a higher floor, and the package names it here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `import toposcope` comes through here, and should cost nothing
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any, Protocol

    from toposcope.models.corpus import Corpus

    class Laboratory(Protocol):
        """What can run a model that `toposcope train` wrote: `toposcope.lab.running`."""

        def with_sequences(self, directory: Path, text: str | None, count: int, seed: int) -> tuple[Any, Corpus]:
            """The model, and sentences of its own task, or random tokens."""


_sources: list[Callable[[], Laboratory]] = []


def run_small_models_with(source: Callable[[], Laboratory]) -> None:
    """Say where the laboratory is; it is imported when the first of its models is run."""
    _sources[:] = [source]


def laboratory() -> Laboratory:
    """The laboratory."""
    return _sources[0]()
