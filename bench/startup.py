"""How long a user waits for `toposcope --help`, in CPU time above a bare interpreter."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from bench.row import Row, interleaved

GOAL = 0.03  # seconds of CPU above `python -c pass`


def cpu_seconds(*arguments: str) -> float:
    """User and system time of one run of this interpreter with the given arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure() -> list[Row]:
    bare, ours, numpy_alone = interleaved(
        21,
        lambda: cpu_seconds("-c", "pass"),
        lambda: cpu_seconds("-m", "toposcope", "--help"),
        lambda: cpu_seconds("-c", "import numpy"),
    )
    extra = ours - bare
    return [
        Row(
            "start-up: `toposcope --help`, CPU above `python -c pass`",
            f"{extra * 1e3:.0f} ms",
            f"`import numpy` alone: {(numpy_alone - bare) * 1e3:.0f} ms",
            f"{extra / max(numpy_alone - bare, 1e-9):.2f}x",
            f"<= {GOAL * 1e3:.0f} ms",
            extra <= GOAL,
        ),
        _spectrum(),
    ]


def _spectrum() -> Row:
    """A whole command, as the user waits for it."""
    command = ("-m", "toposcope", "spectrum", "rope", "--context", "1048576", "--head-dim", "128", "--json", "-")

    def wait() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began

    (seconds,) = interleaved(5, wait)
    return Row("`toposcope spectrum rope --context 1048576`", f"{seconds:.2f} s", "-", "-", "<= 2 s", seconds <= 2)
