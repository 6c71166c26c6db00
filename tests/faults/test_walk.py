"""A sample of the fault walk, or all of it: `python -m tests.faults.walk --all` in four parts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import sampling
from tests.faults.cases import CASES

for package in ("torch", "transformers", "matplotlib"):
    pytest.importorskip(package, reason="the walk runs every command")

ROOT = Path(__file__).parents[2]
PARTS = sampling.count(1, 4)  # processes, each with some of the commands
COMMANDS = 10  # of a sample, with one fault each


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_faults_at_write_points_lose_nothing(part: int) -> None:
    chosen = sampling.sample(CASES[part::PARTS], COMMANDS, of="walk")
    many = ["--all"] if sampling.ALL else ["--sample", str(COMMANDS), "--seed", str(sampling.SEED)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.walk", *many, "--only", ";".join(case.name for case in chosen)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"(\d+) commands, (\d+) write points, (\d+) faults", done.stdout)
    assert found, done.stdout + done.stderr
    commands, points, faults = map(int, found.groups())
    assert commands == len(chosen)
    assert points >= 4 * commands, "the hooks no longer see the writes"
    assert faults >= (points if sampling.ALL else commands - 2), "the faults no longer happen"
    assert "losses: 0" in done.stdout, done.stdout
    assert done.returncode == 0
