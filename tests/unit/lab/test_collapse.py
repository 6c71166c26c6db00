"""Simulated runs of a study: the time against SciPy's own integration, pairs by seed, jobs that are done once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from toposcope.core.errors import ToposcopeError
from toposcope.runs.directory import RESULT
from toposcope.studies import collapse
from toposcope.studies.collapse import CollapseConfig


@pytest.mark.parametrize(("regime", "causal"), [("together", False), ("apart", True)])
def test_the_time_is_that_of_a_plain_integration(regime: str, causal: bool) -> None:
    config = CollapseConfig(regime, causal=causal, tokens=5, width=4, seed=3)  # type: ignore[arg-type]
    random = np.random.default_rng(3)
    w, a = (scale * collapse._definite(random, 4) for scale in (config.scale, 1.0))
    x = random.standard_normal((5, 4))
    v = np.linalg.inv(a) @ w
    v *= (-1 if regime == "together" else 1) / np.linalg.svd(v)[1][0]
    hidden = np.triu(np.full((5, 5), -np.inf), 1) if causal else np.zeros((5, 5))

    def slope(_: float, flat: np.ndarray) -> np.ndarray:
        rows = flat.reshape(5, 4)
        weights = np.exp(rows @ w @ rows.T + hidden)
        weights /= weights.sum(axis=1, keepdims=True)
        return (weights @ rows @ v.T).ravel()

    def moved(_: float, flat: np.ndarray) -> float:
        rows = flat.reshape(5, 4)
        ratio = np.std(rows, axis=0) @ np.std(rows, axis=0) / (np.std(x, axis=0) @ np.std(x, axis=0))
        return float(ratio - (1 / 16 if regime == "together" else 16))

    moved.terminal = True  # type: ignore[attr-defined]
    right = solve_ivp(slope, (0, config.horizon), x.ravel(), events=moved, rtol=1e-9, atol=1e-12)
    found = collapse.run(config)["time"]
    assert found == pytest.approx(right.t_events[0][0], rel=2e-3)


def test_what_never_moves_so_far_has_no_time() -> None:
    assert collapse.run(CollapseConfig("together", tokens=4, width=4, horizon=0.5))["time"] is None


def test_keys_tell_runs_apart_and_bad_settings_are_refused() -> None:
    plain = CollapseConfig("together")
    assert CollapseConfig.from_dict(plain.as_dict()) == plain
    others = [CollapseConfig("apart"), CollapseConfig("together", seed=1), CollapseConfig("together", "rope")]
    assert len({each.key() for each in (plain, *others)}) == 4
    for wrong in ({"width": 3}, {"factor": 1.0}, {"encoding": "rop"}, {"regime": "up"}, {"horizon": 0.0}):
        with pytest.raises(ToposcopeError):
            CollapseConfig.from_dict({**plain.as_dict(), **wrong})


def test_a_job_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = CollapseConfig("apart", "rope", tokens=4, width=4).as_dict()
    collapse.work(asked, tmp_path / "run", lambda said: None)
    before = (tmp_path / "run" / RESULT).read_bytes()
    monkeypatch.setattr(collapse, "run", None)
    collapse.work(asked, tmp_path / "run", lambda said: None)
    assert (tmp_path / "run" / RESULT).read_bytes() == before
