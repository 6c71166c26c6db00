"""What commands share that read what earlier ones have kept: whatever that can be damaged by ends in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def from_disk(where: object, advice: str) -> Iterator[None]:
    """Only around work on stored values: an error there says that they are not what was once written."""
    from toposcope.core.errors import BadFile, ToposcopeError

    try:
        yield
    except (ToposcopeError, OSError, MemoryError):
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {str(error)[:200]}"
        raise BadFile(f"{where} holds what this version does not write ({words}). {advice}") from error
