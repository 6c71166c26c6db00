"""Many runs, two drivers, kills and clocks that jump: a short sweep, or one of full length."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import sampling
from tests.faults.long_sweep import first_claim, jobs_of, sweep
from toposcope.runs.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
JOBS, KILLS = sampling.count(60, 20_000), sampling.count(4, 40)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_run_is_lost_or_done_twice(tmp_path: Path) -> None:
    found = sweep(tmp_path, JOBS, KILLS, seed=sampling.SEED)
    assert (found.done, found.wrong, found.begun_after_end) == (JOBS, 0, 0)
    assert found.kills == KILLS
    assert found.begun_twice <= KILLS, "only a kill makes a run begin again"
    assert len(found.claims) >= JOBS - KILLS


def test_of_many_processes_one_gets_the_run(tmp_path: Path) -> None:
    """All wait on a pipe and go at once; the winner holds the run until all have tried."""
    (job,) = jobs_of(1)
    with Store(tmp_path) as store:
        store.add([job])
    for _ in range(5):
        ready, go = os.pipe()
        told, tell = os.pipe()
        done, end = os.pipe()
        children = []
        for _ in range(6):
            child = os.fork()
            if child == 0:
                os.close(go)
                os.close(end)
                os.read(ready, 1)
                os.write(tell, b"1" if first_claim(tmp_path, job) else b"0")
                os.read(done, 1)  # the lock is held until here
                os._exit(0)
            children.append(child)
        os.close(go)  # all at once
        heard = b"".join(os.read(told, 1) for _ in children)
        os.close(end)
        for child in children:
            os.waitpid(child, 0)
        for pipe in (ready, told, tell, done):
            os.close(pipe)
        assert heard.count(b"1") == 1
