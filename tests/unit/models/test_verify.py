"""Heads whose regime is planted: the verdict, the run, and a wrong verdict that must be caught."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from safetensors.numpy import save_file

import toposcope
from tests.unit.tiny import CONFIG, tensors
from toposcope.checkpoints.fold import fold
from toposcope.dynamics.heads import describe_head
from toposcope.dynamics.regime import Verdict
from toposcope.models.rank import rank_correlation
from toposcope.models.tracing.hidden import HiddenStates
from toposcope.models.tracing.verify import finite_horizon, follow, verify, verify_head

PLANTED = {0: -np.eye(4), 1: np.eye(4), 2: np.diag([1.0, -1.0, -1.0, -0.5]), 3: np.zeros((4, 4))}


@pytest.fixture
def model(tmp_path: Path) -> toposcope.Model:
    """Four heads with V O = -1, +1, mixed and 0, each in coordinates of its own."""
    config = {**CONFIG, "num_key_value_heads": 4, "num_hidden_layers": 1}
    made = tensors(config)
    at = "model.layers.0."
    value, out = np.zeros((16, 16)), np.eye(16)
    for head, small in PLANTED.items():
        rows = slice(4 * head, 4 * head + 4)
        value[rows, rows] = small
    made[f"{at}self_attn.v_proj.weight"] = value.astype(np.float32)
    made[f"{at}self_attn.o_proj.weight"] = out.astype(np.float32)
    made[f"{at}input_layernorm.weight"] = np.ones(16, dtype=np.float32)
    for name in ("q", "k"):
        made[f"{at}self_attn.{name}_proj.weight"] *= 0.2
    save_file(made, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    return toposcope.load(tmp_path)


@pytest.fixture
def hidden() -> HiddenStates:
    x = 5 * np.random.default_rng(2).standard_normal((7, 16))
    return HiddenStates(np.arange(7), (x,), x, "seven tokens")


def test_planted_regimes_are_seen(model: toposcope.Model, hidden: HiddenStates) -> None:
    runs, found = verify(model, hidden)
    assert found.undecided == 1  # the head that writes nothing
    assert found.tokens == 7
    assert [each.verdict for each in runs] == ["converges", "diverges", "not_convergent"]
    assert [each.word for each in runs] == ["agrees"] * 3
    assert found.contradictions == ()
    down, up, mixed = runs
    assert down.observed in ("shrank", "converged")
    assert down.followed is not None
    assert down.followed.log_growth == pytest.approx(-down.end, abs=1e-3)  # x_1 = e^{-t} x_1(0)
    assert up.observed == "grew"
    assert up.followed is not None
    assert up.followed.log_growth == pytest.approx(up.end, abs=1e-3)
    assert up.followed.unstable_share == pytest.approx(1)
    assert mixed.followed is not None
    assert 0 < mixed.followed.unstable_share < 1
    assert mixed.followed.unstable_growth == pytest.approx(mixed.end, abs=1e-3)
    assert found.worst_path is not None
    assert found.worst_path < 1e-3
    assert down.rate < 0 < up.rate
    assert found.table["diverges"]["grew"] == 1
    assert found.words["diverges"] == {"agrees": 1, "not_yet": 0, "contradicts": 0}


@pytest.mark.parametrize(
    ("head", "wrong", "rule", "scope"),
    [
        (1, Verdict.CONVERGES, "T6", "all_tokens"),
        (2, Verdict.CONVERGES, "T6", "all_tokens"),
        (0, Verdict.DIVERGES, "T5", "first_token"),
        (2, Verdict.DIVERGES, "T5", "first_token"),
        (0, Verdict.NOT_CONVERGENT, "T5", "first_token"),
    ],
)
def test_a_wrong_verdict_is_contradicted(
    model: toposcope.Model, hidden: HiddenStates, head: int, wrong: Verdict, rule: str, scope: str
) -> None:
    layer = model.layers[0]
    folded = fold(layer, layer.head(head))
    said = describe_head(layer, folded, storage_error=0.0, rotary=False)
    lie = replace(said, regime=replace(said.regime, verdict=wrong, rule=rule, scope=scope))
    assert verify_head(model, lie, folded, hidden.entering[0]).word == "contradicts"


def test_processes_find_the_same(model: toposcope.Model, hidden: HiddenStates) -> None:
    assert verify(model, hidden, jobs=2) == verify(model, hidden)


def test_only_the_heads_asked_for(model: toposcope.Model, hidden: HiddenStates) -> None:
    assert [each.name for each in verify(model, hidden, layers=[0], heads=[1])[0]] == ["0.1"]


def test_a_path_is_followed_and_a_false_one_is_not() -> None:
    random = np.random.default_rng(0)
    V = random.standard_normal((5, 5))
    times = np.linspace(0, 2, 9)
    start = random.standard_normal(5)
    true = np.stack([scipy.linalg.expm(V * time) @ start for time in times])
    assert follow(V, times, true).on_path
    assert not follow(V, times, true * (1 + 0.01 * times[:, None])).on_path
    assert not follow(-V, times, true).on_path
    stable = -np.eye(5) + 0.1 * V
    assert follow(stable, times, true).unstable_share is None


def test_the_horizon_is_the_specified_one() -> None:
    assert finite_horizon(np.diag([2.0, -3.0])) == pytest.approx(5.0)
    assert finite_horizon(np.diag([-0.001, -3.0])) == pytest.approx(100.0)
    assert finite_horizon(np.zeros((2, 2))) == 1.0


def test_rank_correlation_leaves_gaps_out() -> None:
    found = rank_correlation("p", "m", [1.0, 2.0, None, 3.0, 4.0, float("nan")], [10.0, 20.0, 5.0, 30.0, 400.0, 1.0])
    assert (found.rho, found.count) == (pytest.approx(1.0), 4)
    assert rank_correlation("p", "m", [1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]).rho is None
    assert rank_correlation("p", "m", [1.0, 2.0], [1.0, 2.0]).rho is None
