"""A few hundred cases of the fuzz of all readers, other ones for each commit, or the hundred thousand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import sampling
from tests.faults.mutations import JSON, damaged

for package in ("torch", "jinja2"):
    pytest.importorskip(package, reason="readers of torch files and reports are among them")

ROOT = Path(__file__).parents[2]
PARTS = sampling.count(1, 4)
CASES = sampling.count(300, 25_000)  # of a part


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_files_are_read_or_refused(part: int) -> None:
    words = ["--cases", str(CASES), "--first", str(part * CASES), "--seed", str(sampling.SEED)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.fuzz", *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{CASES} cases" in done.stdout, done.stdout + done.stderr
    bad = re.findall(r"(\d+) crashes, (\d+) hangs, (\d+) above", done.stdout)
    assert bad == [("0", "0", "0")], done.stdout
    rows = re.findall(r"^(.+?)\s+(\d+)\s+\{(.+)\}$", done.stdout, flags=re.M)
    from tests.faults.readers import READERS

    assert {name for name, _, _ in rows} == {reader.name for reader in READERS}, "every reader had its share"
    refused = sum(int(count) for _, _, words in rows for count in re.findall(r"'refused': (\d+)", words))
    assert refused > 0.3 * CASES, "the damage is no longer noticed"


def test_damage_depends_on_the_case_alone() -> None:
    import numpy as np

    content = b'{"a": [1, 2, {"b": "c"}], "d": 1.5}'
    twice = [[damaged(np.random.default_rng([0, k]), content, JSON) for k in range(50)] for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(set(twice[0])) > 30
    assert content not in twice[0][:5]
