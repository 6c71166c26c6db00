"""A sample of the fault walk; `python -m tests.faults.walk --all` makes every write point fail in every way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("torch", "transformers", "matplotlib"):
    pytest.importorskip(package, reason="the walk runs every command")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_faults_at_write_points_lose_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.walk", "--sample", "34", "--seed", "0"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"(\d+) commands, (\d+) write points, (\d+) faults", done.stdout)
    assert found, done.stdout + done.stderr
    commands, points, faults = map(int, found.groups())
    assert commands >= 32
    assert points > 800, "the hooks no longer see the writes"
    assert faults >= 32, "the faults no longer happen"
    assert "losses: 0" in done.stdout, done.stdout
    assert done.returncode == 0
