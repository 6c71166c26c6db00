"""A worker of `on_cores`: reads a job and numbers of layers from its input, writes their entries to its output."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

from toposcope.core.errors import ToposcopeError


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints, prints to the errors
    source = sys.stdin.buffer
    try:
        where, expected, options, shared, stays = pickle.load(source)
        from toposcope.scanning.elsewhere import entry_of

        while True:
            number = pickle.load(source)
            answer: tuple[Any, str | None]
            try:
                entry, factors = entry_of(where, expected, number, options, shared)
                answer = ((entry, factors if stays else None), None)
            except ToposcopeError as error:
                answer = (None, str(error))
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
    except (EOFError, BrokenPipeError):  # the caller has no more work, or is gone
        os._exit(0)


if __name__ == "__main__":
    main()
