"""How much memory a process may take: of the machine, of its control groups, of its own limit."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from toposcope.core.errors import BadValue
from toposcope.core.memory import UNNOTICED, available, require_memory

MACHINE = 8 << 30


def root(tmp_path: Path, cgroup: str, files: dict[str, object]) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {MACHINE // 1024} kB\n")
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, value in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return tmp_path


def test_without_limits_it_is_the_machines(tmp_path: Path) -> None:
    assert available(root(tmp_path, "0::/\n", {"memory.max": "max", "memory.current": 5})) == MACHINE


def test_the_tightest_group_counts_and_cached_files_do_not(tmp_path: Path) -> None:
    held = {
        "a/memory.max": 3 << 30,
        "a/memory.current": 2 << 30,
        "a/memory.stat": f"anon 1\ninactive_file {1 << 30}",
        "a/b/memory.max": "max",
        "a/b/memory.current": 1,
    }
    assert available(root(tmp_path, "0::/a/b\n", held)) == 2 << 30


def test_the_older_kind_of_groups(tmp_path: Path) -> None:
    held = {
        "memory/job/memory.limit_in_bytes": 4 << 30,
        "memory/job/memory.usage_in_bytes": 3 << 30,
        "memory/job/memory.stat": f"total_inactive_file {1 << 29}",
    }
    assert available(root(tmp_path, "5:cpu:/job\n4:memory,x:/job\n", held)) == (1 << 30) + (1 << 29)


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    held = {"memory.max": 1 << 30, "memory.current": 2 << 30}
    assert available(root(tmp_path, "0::/\n", held)) == 0


def test_where_the_system_says_nothing_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available(tmp_path) is None
    monkeypatch.setattr("toposcope.core.memory.available", lambda: None)
    require_memory(1e30, "everything", "Do less.")


def test_the_limit_of_addresses_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = root(tmp_path, "", {})
    (base / "proc/self/statm").write_text("100 1 1 1 0 1 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    assert available(base) == (1 << 30) - 100 * resource.getpagesize()


def test_what_does_not_fit_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.core.memory.available", lambda: 2 * UNNOTICED)
    what, advice = "a table", "Use a smaller one."
    require_memory(2 * UNNOTICED, what, advice)
    with pytest.raises(BadValue, match=what) as refused:
        require_memory(2 * UNNOTICED + 1, what, advice)
    assert advice in str(refused.value)
    with pytest.raises(BadValue):
        require_memory(10**400, what, advice)
