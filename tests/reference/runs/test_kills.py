"""Kill -9 at any moment loses nothing: the results of a disturbed sweep are those of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reference.runs.fake import expected, job, sweep, timeless
from toposcope.runs.directory import read_job, read_result
from toposcope.runs.store import INDEX, Busy, Finished, Store

ROOT = Path(__file__).parents[3]
JOBS, STEPS = 12, 8
SWEEP = (
    "import sys; from tests.reference.runs.fake import sweep; sweep(sys.argv[1], sys.argv[2], {jobs}, steps={steps})"
)


STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _none_left_behind() -> Iterator[None]:
    """A test that fails leaves no sweep running."""
    yield
    while STARTED:
        driver = STARTED.pop()
        if driver.poll() is None:
            driver.kill()
            driver.wait()


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # workers are to find the fake job


def start(store: Path, log: Path, *, before: str = "", jobs: int = JOBS) -> subprocess.Popen[bytes]:
    script = before + "\n" + SWEEP.format(jobs=jobs, steps=STEPS)
    STARTED.append(subprocess.Popen([sys.executable, "-c", script, str(store), str(log)], start_new_session=True))
    return STARTED[-1]


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def check_against_undisturbed(store: Path, log: Path, tmp_path: Path, jobs: int = JOBS) -> None:
    """Same results, every row done, and no finished work done twice."""
    sweep(str(tmp_path / "calm"), str(tmp_path / "calm.log"), jobs, steps=STEPS)
    keys = [job(f"job {i}").key for i in range(jobs)]
    for i, key in enumerate(keys):
        own = read_job(store / key)
        assert own is not None
        assert timeless(store / key / "result.json") == timeless(tmp_path / "calm" / key / "result.json")
        assert (read_result(store / key, own) or {})["chain"] == expected(f"job {i}", STEPS)
        assert not list((store / key).glob(".*.tmp"))
    with Store(store) as opened:
        rows = opened.rows()
    assert {row.key for row in rows} == set(keys)
    assert {row.status for row in rows} == {"done"}
    assert all((row.summary or {})["chain"] for row in rows)
    noted = lines(log)
    repeated = {line: n for line, n in Counter(noted).items() if n > 1 and not line.startswith("begin")}
    assert not repeated, "a step that had its checkpoint, or a whole run, was done twice"
    for i in range(jobs):
        mine = [line for line in noted if line.split()[1:3] == ["job", str(i)]]
        assert f"end job {i}" not in mine[:-1], "a finished run was begun again"


def test_ten_kills_at_random_moments(tmp_path: Path) -> None:
    store, log, dice = tmp_path / "store", tmp_path / "log", random.Random(20)
    for round_ in range(10):
        driver, seen = start(store, log), len(lines(log))
        wanted, patience = dice.choice([0, 1, 3, 5, 7, 9]), dice.uniform(0.0, 0.1)
        while driver.poll() is None and (not (store / INDEX).exists() or len(lines(log)) < seen + wanted):
            time.sleep(0.001)
        time.sleep(patience)
        assert driver.poll() is None, "the sweep was over before it could be killed"
        if round_ % 2:
            os.killpg(driver.pid, signal.SIGKILL)  # workers and all
        else:
            os.kill(driver.pid, signal.SIGKILL)  # workers are left behind
        driver.wait()
    assert len(lines(log)) > 20
    assert start(store, log).wait(60) == 0
    check_against_undisturbed(store, log, tmp_path)


KILL = """
import os, signal
import toposcope.runs.{module} as module
inner, calls = module.{name}, []
def dying(*given, **named):
    calls.append(given)
    if len(calls) == 3 and {early}: os.kill(os.getpid(), signal.SIGKILL)
    value = inner(*given, **named)
    if len(calls) == 3: os.kill(os.getpid(), signal.SIGKILL)
    return value
module.{name} = dying
"""
MOMENTS = {
    "the result is there, its row is not": ("store", "Store._done", True),
    "the row is there, the lock is still held": ("store", "Store._done", False),
    "locked, not yet claimed": ("store", "Store._mark_running", True),
    "claimed, not yet given to a worker": ("local", "_Worker.give", True),
    "given to a worker": ("local", "_Worker.give", False),
    "after a checkpoint, before its sign of life": ("store", "Store.beat", True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_between_two_writes(moment: str, tmp_path: Path) -> None:
    module, name, early = MOMENTS[moment]
    store, log = tmp_path / "store", tmp_path / "log"
    driver = start(store, log, before=KILL.format(module=module, name=name, early=early), jobs=5)
    assert driver.wait(60) == -signal.SIGKILL
    if moment == "the result is there, its row is not":
        _the_index_is_behind_and_repair_mends_it(store)
    assert start(store, log, jobs=5).wait(60) == 0
    check_against_undisturbed(store, log, tmp_path, jobs=5)


def _the_index_is_behind_and_repair_mends_it(store: Path) -> None:
    with Store(store) as opened:
        done = [row.key for row in opened.rows() if row.status == "done"]
        finished = [row.key for row in opened.rows() if opened.result(row.job)]
        assert len(finished) > len(done) == 2
        while any(row.status == "running" for row in opened.rows()):  # workers of the dead driver are still ending
            opened.repair()
            time.sleep(0.01)
        assert {row.key for row in opened.rows() if row.status == "done"} >= set(finished)


def test_a_worker_that_outlives_its_driver_still_has_the_run(tmp_path: Path) -> None:
    store, log, mine = tmp_path / "store", tmp_path / "log", job("job 0")
    config = "sweep(sys.argv[1], sys.argv[2], 1, steps=4, pause=0.3, stubborn=True)"
    script = f"import sys; from tests.reference.runs.fake import sweep; {config}"
    driver = subprocess.Popen([sys.executable, "-c", script, str(store), str(log)])
    STARTED.append(driver)
    while "step job 0 1" not in lines(log):
        time.sleep(0.002)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    with Store(store) as opened:
        assert isinstance(opened.claim(mine), Busy), "the worker is alive: nobody else may begin"
        assert opened.repair() == 0
        while isinstance(claimed := opened.claim(mine), Busy):
            time.sleep(0.01)
    assert isinstance(claimed, Finished)
    assert claimed.result["chain"] == expected("job 0", 4)
    assert lines(log).count("begin job 0") == 1


def test_two_sweeps_share_a_store(tmp_path: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    drivers = [start(store, log) for _ in range(2)]
    assert [driver.wait(60) for driver in drivers] == [0, 0]
    begun = Counter(line for line in lines(log) if line.startswith("begin"))
    assert begun == {f"begin job {i}": 1 for i in range(JOBS)}, "each run is begun once, by one of the two"
    check_against_undisturbed(store, log, tmp_path)


def test_a_second_sweep_takes_over_from_one_that_is_killed(tmp_path: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    first = start(store, log)
    while len(lines(log)) < 4:
        time.sleep(0.002)
    second = start(store, log)
    while len(lines(log)) < 30:
        time.sleep(0.002)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert second.wait(60) == 0
    check_against_undisturbed(store, log, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_stops_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    quiet = "import sys; sys.excepthook = lambda *_: None"
    driver = start(store, log, before=quiet)
    while len(lines(log)) < 15:
        time.sleep(0.002)
    driver.send_signal(number)
    assert driver.wait(30) in (130, -signal.SIGINT)
    with Store(store) as opened:
        states = Counter(row.status for row in opened.rows())
    assert set(states) <= {"queued", "done"}, "nothing is left running"
    assert states["queued"] > 0
    assert start(store, log).wait(60) == 0
    check_against_undisturbed(store, log, tmp_path)
