"""Directions that grow where a token sees only itself, against dense algebra."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.tiny import write_llama
from toposcope.checkpoints import load
from toposcope.dynamics.growing import first_token, leading
from toposcope.dynamics.matrices import matrices
from toposcope.dynamics.run import run
from toposcope.dynamics.sources import head_problem
from toposcope.dynamics.tokens import drawn_tokens


def test_what_moves_the_first_token_of_a_head_has_the_spectrum_of_v_o(tmp_path: Path) -> None:
    with load(write_llama(tmp_path / "m")) as model:
        problem = head_problem(model, 0, 2, drawn_tokens(model, 5, 0))
        verdict = problem.decide()
    assert verdict is not None
    found = np.linalg.eigvals(first_token(problem.pieces[0].make(), problem.start.shape))
    assert np.sort_complex(found) == pytest.approx(np.sort_complex(verdict.eigenvalues), abs=1e-10)


@pytest.mark.parametrize("turn", [0.0, 0.7])
def test_the_share_is_that_of_the_invariant_subspace(turn: float) -> None:
    """A pair of complex eigenvalues is two directions; the matrix is not normal, so eigenvectors are no axes."""
    spiral = np.array([[2.0, -turn, 1.0, 0.5], [turn, 2.0, 0.0, 1.0], [0.0, 0.0, 0.1, 3.0], [0.0, 0.0, 0.0, -1.0]])
    frame = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    start = np.random.default_rng(0).standard_normal((3, 4))
    problem = matrices(0.1 * np.eye(4), frame @ spiral @ frame.T, start, causal=True, horizon=4.0)
    found = run(problem)
    told = leading(problem, found)
    assert told is not None
    assert (told.directions, told.width) == (2, 4)
    for tokens, share in ((problem.start, told.share_at_start), (found.final, told.share_at_end)):
        parts = ((tokens @ frame[:, :2]) ** 2).sum(axis=1) / (tokens**2).sum(axis=1)
        assert share == pytest.approx(parts.mean(), abs=1e-6)


def test_nothing_is_told_without_a_mask_or_where_nothing_grows() -> None:
    start = np.random.default_rng(0).standard_normal((3, 3))
    for v, causal in ((np.diag([1.0, 0.1, -1.0]), False), (-np.eye(3), True)):
        problem = matrices(np.eye(3), v, start, causal=causal, horizon=1.0)
        assert leading(problem, run(problem)) is None
