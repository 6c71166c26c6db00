"""`toposcope sweep`: a table over tasks and encodings, from runs that are done once."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.unit.cli.test_train import TINY
from toposcope.cli import main
from toposcope.runs.store import Store

SWEEP = ["sweep", "--tasks", "distance,count", "--encodings", "rope@heads:0,none,alibi", "--jobs", "1", *TINY]
TIMINGS = ("seconds", "probe_seconds", "seconds_per_sample", "sha256")  # the last is a sum over all


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(str(ended.value.code or 0))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def keys_of(status: str) -> list[str]:
    with Store("runs") as store:
        return [row.key for row in store.rows() if row.status == status]


@pytest.mark.sample(3, of="long commands")
def test_a_sweep_its_table_and_its_repetition(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*SWEEP, "--seeds", "2", "--json", "r.json") == 0
    first = capsys.readouterr()
    counts = ("8 runs", "2 tasks", "2 encodings", "2 seeds", "0 already")
    assert all(each in first.err for each in (*counts, "rope@heads:0,none;", "alibi"))
    assert "8/8" in first.err
    assert max(len(line) for line in first.out.splitlines()) <= 80
    result = json.loads(Path("r.json").read_text())
    assert [(cell["task"], cell["encoding"], cell["n"]) for cell in result["cells"]] == [
        (task, encoding, 2) for task in ("distance", "count") for encoding in ("rope@heads:0,none", "alibi")
    ]
    for cell in result["cells"]:
        mine = [
            run["accuracy"]
            for run in result["runs"]
            if (run["config"]["task"], run["config"]["encoding"]) == (cell["task"], cell["encoding"])
        ]
        low, high = stats.t.interval(0.95, 1, loc=np.mean(mine), scale=stats.sem(mine))
        np.testing.assert_allclose(
            [cell["mean"] - cell["half"], cell["mean"] + cell["half"]], [low, high], atol=1e-12
        )
        assert f"{100 * cell['mean']:5.1f} ± {100 * cell['half']:.1f}" in first.out
    assert " 24.4" in first.out, "the floor of distance"

    assert call(*SWEEP, "--seeds", "0-1", "--csv", "-") == 0
    second = capsys.readouterr()
    assert "8 already" in second.err
    assert "8/8" not in second.err, "nothing was trained"
    rows = list(csv.DictReader(io.StringIO(second.out)))
    assert [float(row["mean"]) for row in rows] == [cell["mean"] for cell in result["cells"]]

    assert call(*SWEEP, "--seeds", "2-2", "--encodings", "t5;none", "--tasks", "count", "--json", "-") == 0
    third = capsys.readouterr()
    assert "others take" in third.err or "laptop-s" in third.err
    assert json.loads(third.out)["cells"][0]["half"] is None


@pytest.mark.slow
@pytest.mark.sample(3, of="long commands")
def test_a_killed_sweep_of_real_runs_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    longer = [word.replace("steps=6", "steps=120") for word in TINY]
    command = [sys.executable, "-m", "toposcope", "sweep", "--tasks", "distance", "--encodings", "t5"]
    command += ["--seeds", "1", "--jobs", "1", *longer, "--store"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    driver = subprocess.Popen([*command, "killed"], **quiet)
    while not list(Path("killed").glob("*/checkpoint.pt")):
        assert driver.poll() is None
        time.sleep(0.005)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert list(Path("killed").glob("*/checkpoint.pt"))
    for store in ("killed", "calm"):
        assert subprocess.run([*command, store], check=False, **quiet).returncode == 0
    with Store("calm") as store_:
        keys = [row.key for row in store_.rows()]
    assert len(keys) == 1
    for key in keys:
        told = [json.loads(Path(store, key, "result.json").read_text()) for store in ("killed", "calm")]
        for each in told:
            for name in TIMINGS:
                del each[name]
        assert told[0] == told[1]
        weights = [Path(store, key, "model", "model.safetensors").read_bytes() for store in ("killed", "calm")]
        assert weights[0] == weights[1]


def test_failed_runs_are_named_and_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    wild = [*SWEEP, "--seeds", "1", "--tasks", "distance", "--encodings", "none", "--set", "lr=1e300"]
    assert call(*wild) == 1
    said = capsys.readouterr().out
    failed = keys_of("failed")
    assert len(failed) == 6
    assert all(key in said for key in failed)
    assert "learning rate" in " ".join(said.split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--encodings", "rope,rope@heds:0"], "'heads'"),
        (["--tasks", "cuont"], "'count'"),
        (["--seeds", "none"], "seeds"),
        (["--ray-address", "1.2.3.4:5"], "--engine ray"),
        (["--encodings", ";"], "no encoding"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input(change: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = [word for word in SWEEP if word not in ("--encodings", "rope@heads:0,none,alibi")]
    given = [*base, *change] if "--encodings" in change else [*SWEEP, *change]
    assert call(*given) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()
