"""`scan --out` under SIGKILL at several moments: no finished layer is scanned again, and the result is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit import tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LAYERS = 8
# A scan that notes every layer it begins, and takes its time over it.
SLOW = """
import sys, time
from toposcope.cli import main
from toposcope.scanning import scan
whole = scan.layer_entry
def noted(model, number, *rest):
    with open(sys.argv[1], "a") as log:
        log.write(f"{number}\\n")
    time.sleep(float(sys.argv[2]))
    return whole(model, number, *rest)
scan.layer_entry = noted
main(sys.argv[3:])
"""


def command(log: Path, pause: float, *words: str | Path) -> list[str]:
    return [sys.executable, "-c", SLOW, str(log), str(pause), *map(str, words)]


def kept(journal: Path) -> int:
    """How many layers are wholly on the disk."""
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


def timeless(path: Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if not line.startswith('    "seconds"'))


def test_kills_cost_at_most_the_layer_at_work(tmp_path: Path) -> None:
    model = tiny.write_llama(tmp_path / "model", num_hidden_layers=LAYERS)
    log, journal = tmp_path / "log", tmp_path / "out" / "journal.jsonl"
    words = ("scan", model, "--out", tmp_path / "out", "--json", tmp_path / "found.json")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    kills = 0
    for goal, extra in ((0, 0.0), (1, 0.05), (3, 0.11), (6, 0.0), (7, 0.16)):  # while 0, 1, 3, ... layers are kept
        with subprocess.Popen(command(log, 0.2, *words), env=environment, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and not (kept(journal) >= goal and log.exists()):
                time.sleep(0.01)
            time.sleep(extra)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        kills += 1
        assert not (tmp_path / "found.json").exists()
    before = kept(journal)
    assert 6 <= before < LAYERS
    subprocess.run(command(log, 0, *words), env=environment, check=True, capture_output=True)
    begun = [int(line) for line in log.read_text().split()]
    assert begun == sorted(begun)
    assert sorted(set(begun)) == list(range(LAYERS))
    assert len(begun) <= LAYERS + kills  # each kill lost one layer at most
    subprocess.run(
        [sys.executable, "-m", "toposcope", "scan", str(model), "--json", str(tmp_path / "undisturbed.json")],
        env=environment,
        check=True,
        capture_output=True,
    )
    assert timeless(tmp_path / "found.json") == timeless(tmp_path / "undisturbed.json")
    assert timeless(tmp_path / "out" / "result.json") == timeless(tmp_path / "undisturbed.json")
    assert len(json.loads((tmp_path / "found.json").read_text())["heads"]) == 4 * LAYERS
