"""A worker process: `python -m toposcope.runs.worker DESCRIPTOR`, where the descriptor is a socket to its driver.

The driver sends one job at a time as a line of JSON, and with it the open lock of the run's directory, so the run
stays locked while either of the two lives. The worker answers with lines: progress, done, failed. When the driver
is gone, the worker stops: what it was doing is in its last checkpoint.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toposcope.core.errors import ToposcopeError
from toposcope.runs.jobs import work
from toposcope.runs.queue import Failure
from toposcope.runs.store import disk_is_full

PAUSE = 0.2  # seconds between two lines of progress
MESSAGE = 1 << 20  # bytes of the longest job


def main() -> None:
    """Do the jobs that come, until there is nobody to send them."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which tells us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.dup2(2, 1)  # what libraries print must not be taken for ours
    wire = socket.socket(fileno=int(sys.argv[1]))
    jobs: queue.SimpleQueue[tuple[dict[str, Any], int]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(wire, jobs), daemon=True).start()
    while True:
        order, lock = jobs.get()
        try:
            _do(order, wire)
        finally:
            os.close(lock)
        _send(wire, {"end": True})  # after the lock is closed: the driver's is then the last


def attempt(
    kind: str, config: Mapping[str, Any], directory: Path, report: Any, device: str = "cpu"
) -> Failure | None:
    """Work, and say what went wrong instead of raising it."""
    try:
        if device == "cpu":
            work(kind)(config, directory, report)
        else:
            from toposcope.models.device import chosen_device

            work(kind)(config, directory, report, device=chosen_device(device))
    except ToposcopeError as error:
        return Failure(str(error), for_good=True, disk_full=disk_is_full(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the run's last words
        return Failure("".join(traceback.format_exception(error)[-8:]).strip(), disk_full=disk_is_full(error))
    return None


def _do(order: dict[str, Any], wire: socket.socket) -> None:
    last = 0.0

    def report(data: Mapping[str, Any]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PAUSE:
            last = now
            _send(wire, {"progress": dict(data)})

    failure = attempt(order["kind"], order["config"], Path(order["directory"]), report, order["device"])
    if failure:
        _send(wire, {"words": failure.words, "for_good": failure.for_good, "disk_full": failure.disk_full})


def _listen(wire: socket.socket, jobs: queue.SimpleQueue[tuple[dict[str, Any], int]]) -> None:
    """Take jobs from the driver; when it is gone, end this process, gently and then not."""
    text, locks = b"", []
    with contextlib.suppress(OSError):
        while True:
            received, descriptors, _, _ = socket.recv_fds(wire, MESSAGE, 1)
            if not received:
                break
            text += received
            locks += descriptors
            if text.endswith(b"\n"):
                jobs.put((json.loads(text), locks.pop()))
                text = b""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5.0)
    os._exit(143)


def _send(wire: socket.socket, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the driver is gone: the listener sees to it
        wire.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
