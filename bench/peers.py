"""Peers that are packages of others, in an environment of their own (`make peers`), each in a process that waits.

A worker is a module of `bench` that imports nothing of Toposcope and ends with `serve(answer)`: it reads one JSON
object a line, does the work, and writes one JSON object a line with what it cost. So ours and theirs take turns in
one run, though they share no environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".peers" / "bin" / "python"
MISSING = "peer not installed: make peers"


def there(python: Path = PYTHON) -> bool:
    """Whether the environment of the peers has been made."""
    return python.is_file()


class Peer:
    """A worker that runs until the `with` block ends; `ask` sends it a request and waits for the answer."""

    def __init__(self, module: str, *arguments: str, python: Path = PYTHON) -> None:
        self.module = module
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
        self._process = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **offline},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def ask(self, **request: Any) -> dict[str, Any]:
        """The worker's answer to a request."""
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"the worker {self.module} ended:\n{self._errors.read()[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):
            self._requests.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._errors.close()


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until the input ends. What libraries print goes elsewhere: answers have the output alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of one call, and what it gave."""
    before = time.process_time()
    found = work()
    return time.process_time() - before, found
