"""Whether memory is there before it is taken: a clear sentence instead of a killed process."""

from __future__ import annotations

from pathlib import Path

from toposcope.core.errors import BadValue

GIGABYTE = 1e9
UNNOTICED = 1 << 26  # bytes: less is not worth asking the system about
_ROOT = Path("/")


def available(root: Path = _ROOT) -> int | None:
    """The bytes this process may still take, where the system says so (Linux): of the machine, of its control groups,
    and under its own limit of addresses (ulimit -v)."""
    known = [each for each in (_machine(root), *_cgroups(root), _addresses(root)) if each is not None]
    return min(known, default=None)


def require_memory(needed: float, what: str, advice: str) -> None:
    """Complain where so many bytes are not there."""
    if needed < UNNOTICED:
        return
    there = available()
    if there is not None and needed > there:
        gigabytes = min(needed, 1e30) / GIGABYTE
        raise BadValue(
            f"{what} would take about {gigabytes:,.1f} GB of memory, and {there / GIGABYTE:.1f} GB are free. {advice}"
        )


def _machine(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    said = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if said is None else 1024 * int(said)


def _cgroups(root: Path) -> list[int | None]:
    """What the limits of this process's control groups leave, from its own group up to the root's (v2, then v1)."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        v1 = "memory" in controllers.split(",")
        if controllers and not v1:
            continue
        base = root / "sys/fs/cgroup" / ("memory" if v1 else "")
        limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
        group = base / path.lstrip("/")
        while True:
            left.append(_left(group, limit, used))
            if group in (base, group.parent):
                break
            group = group.parent
    return left


def _addresses(root: Path) -> int | None:
    """What the limit of this process's address space leaves."""
    try:
        import resource  # not on Windows

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        taken = resource.getpagesize() * int((root / "proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError):
        return None
    return None if most == resource.RLIM_INFINITY else max(0, most - taken)


def _left(group: Path, limit: str, used: str) -> int | None:
    """Limit less use, where the pages that only cache files do not count as used."""
    most, now = _number(group / limit), _number(group / used)
    if most is None or now is None:
        return None
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        now -= int(stat.get("inactive_file", stat.get("total_inactive_file", 0)))
    except (OSError, ValueError):
        pass
    return max(0, most - now)


def _number(path: Path) -> int | None:
    """The number in a file; None for "max", and where there is no such file."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
