"""The hooks of the fault walk see every write and make the chosen one fail; a walk that saw none would be void."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, os, sqlite3
from pathlib import Path
from tests.faults import points
from toposcope.core.files import write_text
points.install(weights=False)
place, k, fault = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
points.arm(points.Plan(k, fault), (place,), place.parent / "log")
(place / "new").mkdir()
write_text(place / "new" / "a.txt", "whole")
base = sqlite3.connect(place / "b.sqlite", isolation_level=None)
base.execute("CREATE TABLE t (x)")
base.execute("INSERT INTO t VALUES (1)")
(place / "new" / "a.txt").unlink()
"""


def run(place: Path, k: int, fault: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    place.mkdir()
    log = place.parent / "log"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-c", SCRIPT, str(place), str(k), fault]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done, [line.split("\t") for line in log.read_text().splitlines()]


def test_every_kind_of_write_is_counted(tmp_path: Path) -> None:
    done, met = run(tmp_path / "a", 0, "kill")
    assert done.returncode == 0, done.stderr
    kinds = [(kind, Path(path).name.split(".")[-1]) for _, _, kind, path in met]
    assert kinds[0] == ("mkdir", "new")
    assert [kind for kind, _ in kinds[1:5]] == ["create", "write", "sync", "rename"]
    database = [kind for kind, name in kinds if name.startswith("sqlite")]
    assert database.count("create") >= 2, "the database and its journal"
    assert database.count("write") >= 8
    assert "remove" in database, "the journal goes when the transaction is done"
    assert kinds[-1] == ("remove", "txt")


@pytest.mark.parametrize(
    ("k", "fault", "words"), [(3, "full", "disk is full"), (2, "readonly", "read-only"), (1, "denied", "denied")]
)
def test_the_chosen_write_fails(tmp_path: Path, k: int, fault: str, words: str) -> None:
    done, met = run(tmp_path / "a", k, fault)
    assert len(met) >= k
    assert words in done.stderr.lower()
    assert not (tmp_path / "a" / "new" / "a.txt").exists()


def test_a_full_disk_reaches_the_database_as_its_own_error(tmp_path: Path) -> None:
    _, met = run(tmp_path / "a", 0, "kill")
    first = next(int(number) for _, number, kind, path in met if kind == "write" and path.endswith("sqlite"))
    done, _ = run(tmp_path / "b", first, "full")
    assert "sqlite3.OperationalError" in done.stderr
    assert "full" in done.stderr.splitlines()[-1]


def test_a_kill_leaves_half_of_what_was_being_written(tmp_path: Path) -> None:
    done, _ = run(tmp_path / "a", 3, "kill")
    assert done.returncode == -9
    (left,) = (tmp_path / "a" / "new").iterdir()
    assert left.name.endswith(".tmp")
    assert left.read_bytes() == b"wh"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["new"]
