"""The protocol between the benchmark and a peer's process, with a fake peer in this interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from bench.flow import Solver
from bench.peers import Peer, there

PYTHON = Path(sys.executable)
FAKE = "tests.unit.bench.fake_peer"


def test_a_worker_answers_in_turn_whatever_it_prints() -> None:
    with Peer(FAKE, "10", python=PYTHON) as peer:
        assert peer.ask(add=1) == {"total": 11}
        assert peer.ask(add=5) == {"total": 16}


def test_a_worker_that_fails_is_named_with_what_it_said() -> None:
    with Peer(FAKE, "10", python=PYTHON) as peer, pytest.raises(RuntimeError, match=f"(?s){FAKE}.*KeyError: 'add'"):
        peer.ask(remove=1)


def test_an_environment_that_was_not_made_is_seen(tmp_path: Path) -> None:
    assert there(PYTHON)
    assert not there(tmp_path / "bin" / "python")


def test_tolerances_are_matched_to_an_error() -> None:
    solver = Solver("fake", lambda rtol, atol: (1.0, 7, np.array([40 * rtol**0.9])))
    solver.match(lambda state: float(state[0]), 1e-5)
    assert solver.error == pytest.approx(1e-5, rel=0.25)
    assert solver.evaluations == 7
    assert 40 * (solver.share * 1e-6) ** 0.9 == pytest.approx(solver.error)
