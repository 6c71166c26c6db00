"""Work on a queue with processes of this machine.

Each worker is a fresh interpreter that does one run after another, with its BLAS and torch threads capped before
either is loaded: with several workers, more threads would only fight over the cores, and one thread keeps results
the same however many workers there are.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import IO, Any

from toposcope.core.cluster import TICK, stop_signals
from toposcope.runs.queue import Failure, Queue
from toposcope.runs.store import Claim

GRACE = 5.0  # seconds a worker has to stop
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def run(queue: Queue, *, jobs: int, threads: int = 1, devices: Sequence[str] = ("cpu",)) -> None:
    """Do all runs of the queue, the workers spread over the devices.

    SIGINT and SIGTERM stop it, as KeyboardInterrupt; everything can then be resumed.
    """
    crew: list[_Worker] = []
    with stop_signals() as stopped, selectors.DefaultSelector() as selector:
        try:
            while queue.open:
                if stopped.is_set():
                    raise KeyboardInterrupt
                _hand_out(queue, crew, selector, jobs, threads, devices)
                for key, _ in selector.select(TICK):
                    worker: _Worker = key.data
                    if not worker.poll(queue):
                        selector.unregister(worker.wire)
                        crew.remove(worker)
                        worker.reap(queue)
        finally:
            for worker in crew:
                worker.stop()
            for worker in crew:
                worker.wait()
            queue.give_back()


def _hand_out(
    queue: Queue,
    crew: list[_Worker],
    selector: selectors.BaseSelector,
    jobs: int,
    threads: int,
    devices: Sequence[str],
) -> None:
    """Give every idle worker a run, hiring as long as there are runs and room."""
    idle = [worker for worker in crew if worker.claim is None]
    while idle or len(crew) < jobs:
        claim = queue.next()
        if claim is None:
            return
        if idle:
            worker = idle.pop()
        else:
            taken = Counter(each.device for each in crew)
            worker = _Worker(threads, min(devices, key=lambda device: taken[device]))
            crew.append(worker)
            selector.register(worker.wire, selectors.EVENT_READ, worker)
        worker.give(claim)


class _Worker:
    """The driver's end of one worker process."""

    def __init__(self, threads: int, device: str = "cpu") -> None:
        self.device = device
        self.claim: Claim | None = None
        self.wire, theirs = socket.socketpair()
        self._text = b""
        self._failure: Failure | None = None
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process is
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "toposcope.runs.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env=os.environ | dict.fromkeys(THREADS, str(threads)),
            )

    def give(self, claim: Claim) -> None:
        """Send a run, and its lock with it. A worker that died meanwhile is noticed at the next poll."""
        job = claim.job
        order = {"kind": job.kind, "config": dict(job.config), "directory": str(claim.directory.resolve())}
        order["device"] = self.device
        self.claim, self._failure = claim, None
        self._words.seek(0)
        self._words.truncate()
        with contextlib.suppress(OSError):
            text = json.dumps(order).encode() + b"\n"
            sent = socket.send_fds(self.wire, [text], [claim.held.descriptor])
            self.wire.sendall(text[sent:])

    def poll(self, queue: Queue) -> bool:
        """Read what the worker has sent; False when it has gone."""
        try:
            received = self.wire.recv(1 << 16)
        except OSError:
            received = b""
        *lines, self._text = (self._text + received).split(b"\n")
        for line in lines:
            self._handle(json.loads(line), queue)
        return bool(received)

    def _handle(self, said: dict[str, Any], queue: Queue) -> None:
        claim = self.claim
        if claim is None:
            return
        if "progress" in said:
            queue.progress(claim, said["progress"])
        elif "words" in said:
            self._failure = Failure(**said)
        elif self._failure:
            self.claim = None
            queue.failed(claim, self._failure)
        else:
            self.claim = None
            queue.finished(claim)

    def reap(self, queue: Queue) -> None:
        """The process has ended: its run, if it had one, is to be tried again."""
        claim, words = self.claim, self.wait()
        if claim is not None:
            queue.failed(claim, Failure(words))

    def stop(self) -> None:
        """Ask the process to stop; one that has nothing to tidy up need not be asked."""
        if self.claim is None:
            self._process.kill()
        else:
            self._process.terminate()

    def wait(self) -> str:
        """Wait for the end, force it if need be, and return the process's last words."""
        self.wire.close()
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - 2000))
        words = self._words.read().decode(errors="replace").strip()
        self._words.close()
        return f"{_ending(code)}\n{words}".strip()


def _ending(code: int) -> str:
    if code >= 0:
        return f"the worker process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; the machine may have run out of memory" if -code == signal.SIGKILL else ""
    return f"the worker process was killed by {name}{hint}"
