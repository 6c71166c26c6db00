"""Foresee memory before it is asked for: a clear sentence instead of a killed process."""

from __future__ import annotations

from pathlib import Path

from toposcope.errors import BadValue

GIGABYTE = 1e9


def available() -> int | None:
    """The bytes a process may still take, where the system says so (Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    said = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if said is None else 1024 * int(said)


def foresee(needed: float, what: str, advice: str) -> None:
    """Complain where so many bytes are not there."""
    there = available()
    if there is not None and needed > there:
        raise BadValue(
            f"{what} would take about {needed / GIGABYTE:.1f} GB of memory, and {there / GIGABYTE:.1f} GB are free. "
            f"{advice}"
        )
