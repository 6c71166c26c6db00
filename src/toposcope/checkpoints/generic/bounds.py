"""What measuring may cost: a configuration from elsewhere decides the sizes, so they are bounded.

`Refused` is the one exception inside this package: why a model cannot be described by measuring it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from toposcope.core.errors import ToposcopeError

SECONDS = 600.0
LARGEST_INTEGER = 1 << 31  # of a configuration
MOST_ITEMS = 100_000  # settings of a configuration, those in lists and nested ones counted
MOST_LAYERS = 1_000
MOST_PARAMETERS = 1_500_000_000  # of the copy that is run
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth")


class Refused(Exception):
    """Why a model cannot be described by measuring it."""


class Deadline:
    """A moment after which measuring stops."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._ends = time.monotonic() + seconds

    def check(self) -> None:
        """Complain once the time is over."""
        if time.monotonic() > self._ends:
            raise Refused(f"measuring it takes longer than {self.seconds:g} seconds")


def require_reasonable(values: Mapping[str, Any]) -> None:
    """Complain of a configuration whose numbers no model has."""
    todo: list[Any] = [values]
    seen = 0
    while todo:
        value = todo.pop()
        seen += 1
        if seen > MOST_ITEMS:
            raise Refused(f"its configuration holds more than {MOST_ITEMS:,} settings")
        if isinstance(value, Mapping):
            for key in _LAYERS:
                count = value.get(key)
                if isinstance(count, int) and count > MOST_LAYERS:
                    raise Refused(f"its configuration claims {count} layers; at most {MOST_LAYERS} are measured")
            todo += [entry for key, entry in value.items() if key not in ("id2label", "label2id")]
        elif isinstance(value, list | tuple):
            todo += value
        elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise Refused(f"its configuration holds the number {str(value)[:24]}")


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Whatever transformers or torch raise in here becomes a reason."""
    try:
        yield
    except (Refused, ToposcopeError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise Refused(f"{what} ({type(error).__name__}{': ' + lines[0][:160] if lines else ''})") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from remarking on settings that were made small."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
