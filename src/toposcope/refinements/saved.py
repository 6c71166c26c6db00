"""The state of an unfinished tuning on disk: written whole or not at all, read without running any code."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.core.files import write_bytes
from toposcope.core.untrusted import SAVED, read_bytes, require_plain

NAME = "checkpoint.pt"
WRITTEN = (NAME, "result.json", "diagonal.safetensors")


class State:
    """What is known so far: losses of conditions, and for each arm its steps, parameters and optimiser.

    Without a directory nothing is written.
    """

    def __init__(self, directory: str | Path | None, key: str) -> None:
        self._path = None if directory is None else Path(directory) / NAME
        self._data: dict[str, Any] = {"key": key, "losses": {}, "arms": {}}
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadValue(f"cannot write into {self._path.parent}: {error.strerror}. Give another --out.") from error
        require_plain(self._path.parent, WRITTEN)
        with suppress(NotFound):
            self._data = self._read(self._path, key)

    def kept(self, name: str, measure: Callable[[], list[float]]) -> list[float]:
        """The losses of a condition, measured once."""
        if name not in self._data["losses"]:
            self._data["losses"][name] = measure()
            self._write()
        return list(self._data["losses"][name])

    def resume(self, arm: str, parameters: Sequence[Any], optimizer: Any) -> int:
        """Put an arm back to where it was saved; returns the steps it has made."""
        known = self._data["arms"].setdefault(arm, {"step": 0, "training": [], "seconds": 0.0})
        with self._sound():
            known["training"] = known["training"][: known["step"]]
            known["seconds"] = float(known["seconds"])
        with self._sound():
            if known["step"]:
                with torch.no_grad():
                    for parameter, value in zip(parameters, known["parameters"], strict=True):
                        parameter.copy_(value)
                optimizer.load_state_dict(known["optimizer"])
            return int(known["step"])

    def note(self, arm: str, loss: float, seconds: float) -> None:
        self._data["arms"][arm]["training"].append(loss)
        self._data["arms"][arm]["seconds"] += seconds

    def save(self, arm: str, step: int, parameters: Sequence[Any], optimizer: Any) -> None:
        known = self._data["arms"][arm]
        known["step"] = step
        known["parameters"] = [each.detach().clone() for each in parameters]
        known["optimizer"] = optimizer.state_dict()
        self._write()

    def training(self, arm: str) -> list[float]:
        return list(self._data["arms"][arm]["training"])

    def seconds(self, arm: str) -> float:
        return float(self._data["arms"][arm]["seconds"])

    # ------------------------------------------------------------- inside
    def _write(self) -> None:
        if self._path is not None:
            buffer = io.BytesIO()
            torch.save(self._data, buffer)
            write_bytes(self._path, buffer.getvalue())

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Whatever a state can be damaged by, say so in a sentence."""
        try:
            yield
        except Exception as error:  # the unpickler and torch's optimisers raise anything
            words = str(error).partition("\n")[0][:200]
            raise BadFile(f"{self._path} is damaged ({words}). Delete it to start anew.") from error

    def _read(self, path: Path, key: str) -> dict[str, Any]:
        content = read_bytes(path, most=SAVED, inside=path.parent, links=False)
        with self._sound():
            found = torch.load(io.BytesIO(content), weights_only=True)
            theirs = found["key"]
            if not all(isinstance(found[part], dict) for part in ("losses", "arms")):
                raise ValueError("parts are missing")
        if theirs != key:
            raise BadFile(
                f"{path} is of a run with another model, text or options. Give another --out, or delete it."
            )
        return found


def forget(directory: str | Path) -> None:
    """Remove the state of a run that is finished; where that cannot be done, the result stands all the same."""
    with suppress(OSError):
        (Path(directory) / NAME).unlink(missing_ok=True)
