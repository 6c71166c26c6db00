"""What work on several cores or machines shares: how many cores there are, a clean stop, and Ray's start."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from toposcope.core.errors import BadValue, MissingExtra

TICK = 0.2  # seconds; how soon a signal, or a run that another sweep let go, is noticed


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_thread() -> AbstractContextManager[Any]:
    """Products on one thread each: for work that is spread over cores already, whose threads would get in the way."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1, user_api="blas")


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets, so that work stops between two steps; a second one interrupts at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(*_: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def connect(address: str | None) -> Any:
    """Ray, connected to the cluster at `address` (None: a Ray of this machine's own, while it lasts)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtra("--engine ray needs Ray: pip install 'toposcope[cluster]'.") from None
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        settings["include_dashboard"] = False
        if sys.platform == "linux":  # Ray turns 127.0.0.1 into the machine's outward address, and leaves this alone
            settings["_node_ip_address"] = "127.0.0.2"
    elif address.startswith("127."):
        settings["_node_ip_address"] = address.partition(":")[0]
    try:
        ray.init(address=address or "local", **settings)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadValue(
            f"no Ray cluster answers at {address or 'this machine'} ({str(error).splitlines()[0]}). "
            "Start one with 'ray start --head' and give its address with --ray-address."
        ) from error
    return ray
