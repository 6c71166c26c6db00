"""Fresh interpreters on the cores of this machine, which compute what they are handed.

Threads wait for one another where much of the time is Python's, or behind a lock inside LAPACK. A function goes to
an interpreter by its name, arguments and answers go through its pipes. All are gone when the work is done, after an
error, when the caller is interrupted, and when the caller itself is gone: their input ends then.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from toposcope.core.cluster import TICK
from toposcope.core.errors import BadValue, ToposcopeError

T = TypeVar("T")
START = 0.8  # seconds until one is ready
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# glibc then keeps the memory of large arrays that were let go: getting it anew, page by page, took 1/20 of a trace
KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


class InterpreterLost(Exception):
    """An interpreter ended before it answered; the caller says what that means for its work."""


class Interpreters:
    """So many interpreters, which import the module `ready` at once; calls may share arguments (`share`)."""

    def __init__(self, count: int, *, ready: str = "") -> None:
        home = str(Path(__file__).parents[2])  # where the package lies, however it was found
        paths = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH")) if part)
        self._started: list[subprocess.Popen[bytes]] = []
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._shared = pickle.dumps((), protocol=pickle.HIGHEST_PROTOCOL)
        self.asked = self.answered = 0  # calls
        self._fresh = set[int]()  # those that have not been sent what is shared
        try:
            for _ in range(count):
                process = subprocess.Popen(
                    [sys.executable, "-m", __name__, *([ready] if ready else [])],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**KEEPING, **os.environ, **ONE_THREAD, "PYTHONPATH": paths},
                    start_new_session=True,  # an interrupt of the terminal reaches the caller alone, who ends them
                )
                self._started.append(process)
                self._fresh.add(process.pid)
                self._free.put(process)
        except BaseException:
            self.end()
            raise
        self._threads = ThreadPoolExecutor(count)

    def __enter__(self) -> Interpreters:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def share(self, *arguments: Any) -> None:
        """What every call begins with, sent once to each interpreter: `function(*shared, *arguments)`."""
        self._shared = pickle.dumps(arguments, protocol=pickle.HIGHEST_PROTOCOL)

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Have it computed by the next one that is free."""
        self.asked += 1
        return self._threads.submit(self._call, function, arguments)

    def end(self) -> None:
        """Stop them all, whatever they do."""
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        process = self._free.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.pid in self._fresh:
                self._fresh.discard(process.pid)
                process.stdin.write(self._shared)
            pickle.dump((function, arguments), process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer, words = pickle.load(process.stdout)
            self.answered += 1
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(TICK)
            raise InterpreterLost(f"ended with code {process.returncode} ({type(error).__name__})") from None
        finally:
            self._free.put(process)
        if words is not None:
            raise BadValue(words)
        return answer


class Here:
    """The same interface without another interpreter: what is handed over is computed at once."""

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        done = Future[T]()
        done.set_result(function(*arguments))
        return done


Pool = Interpreters | Here
HERE = Here()


def as_done(futures: Iterable[Future[T]]) -> Iterator[Future[T]]:
    """The futures as they are done; waiting for them can be interrupted."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=TICK, return_when=FIRST_COMPLETED)
        yield from done


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints, prints to the errors
    source = sys.stdin.buffer
    for name in sys.argv[1:]:
        importlib.import_module(name)
    try:
        shared = pickle.load(source)
        while True:
            function, arguments = pickle.load(source)
            answer: tuple[Any, str | None]
            try:
                answer = (function(*shared, *arguments), None)
            except ToposcopeError as error:
                answer = (None, str(error))
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
    except (EOFError, BrokenPipeError):  # the caller has no more work, or is gone
        os._exit(0)


if __name__ == "__main__":
    main()
