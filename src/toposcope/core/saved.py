"""The state of unfinished work on disk: written whole or not at all, read without running any code (needs torch)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from toposcope._version import __version__
from toposcope.core.errors import BadFile, NotFound
from toposcope.core.files import write_bytes
from toposcope.core.printable import printable
from toposcope.core.untrusted import SAVED, read_bytes

NAME = "checkpoint.pt"


def save(directory: Path, state: Mapping[str, Any]) -> None:
    """Write the state to a temporary name, then rename it."""
    import torch

    buffer = io.BytesIO()
    torch.save({**_at_home(state), "toposcope": __version__}, buffer)
    write_bytes(directory / NAME, buffer.getvalue())


def restore(directory: Path, parts: Iterable[str]) -> dict[str, Any] | None:
    """The state of an earlier session, which must have these parts; None where there is none.

    Only tensors and plain data are accepted.
    """
    import torch

    try:
        content = read_bytes(directory / NAME, most=SAVED, inside=directory, links=False)
    except NotFound:
        return None
    with guard(directory):
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        if not isinstance(state, dict) or set(parts) - state.keys():
            raise ValueError("parts are missing")
    if state.get("toposcope") != __version__:
        raise BadFile(
            f"{directory / NAME} is the state of a run that version {printable(state.get('toposcope', '0.1.0'), 20)} "
            f"began; this is {__version__}, and the run would be a mixture. Delete it to start this run anew."
        )
    return state


def _at_home(value: Any) -> Any:
    """A state whose tensors are on the CPU: it can be read where that device is not."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {key: _at_home(each) for key, each in value.items()}
    return type(value)(map(_at_home, value)) if type(value) in (list, tuple) else value


@contextmanager
def guard(directory: Path) -> Iterator[None]:
    """Whatever a state can be damaged by, say so in a sentence."""
    try:
        yield
    except Exception as error:  # the unpickler, torch's modules and optimisers raise anything
        words = str(error).partition("\n")[0][:200]
        raise BadFile(f"{directory / NAME} is damaged ({words}). Delete it to start this run anew.") from error


def clear(directory: Path) -> None:
    """Remove the state of a run that is finished; where that cannot be done, the result stands all the same."""
    with suppress(OSError):
        (directory / NAME).unlink(missing_ok=True)
