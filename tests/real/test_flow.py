"""Flows of heads of SmolLM2: of rounding they say what scan says, and tokens end where V O grows fastest."""

from __future__ import annotations

from typing import Any

import pytest

import toposcope
from toposcope.checkpoints.installed import find
from toposcope.core.errors import NotFound
from toposcope.dynamics.flow import MOST_EVALUATIONS
from toposcope.dynamics.heads import head_dynamics
from toposcope.dynamics.storage import layer_storage_error
from toposcope.dynamics.trajectory import Status
from toposcope.report.views.flow_position import position_line
from toposcope.report.views.flow_words import firm, next_steps, scope, setup


@pytest.fixture(scope="module")
def smollm2() -> toposcope.Model:
    try:
        find("smollm2").path()
    except NotFound as missing:
        pytest.skip(str(missing))
    return toposcope.load("smollm2")


@pytest.mark.parametrize(("layer", "head", "robust"), [(10, 8, True), (24, 1, True), (11, 6, False), (2, 1, False)])
def test_a_flow_knows_as_scan_does_whether_a_verdict_survives_rounding(
    smollm2: toposcope.Model, layer: int, head: int, robust: bool
) -> None:
    flow = toposcope.flow(smollm2, head=(layer, head), tokens=2, horizon=0.01).flows[0]
    error = layer_storage_error(smollm2, smollm2.layers[layer])
    assert flow.verdict is not None
    assert flow.verdict.storage_error == error
    assert flow.verdict.robust is robust is head_dynamics(smollm2.layers[layer], head, storage_error=error).robust
    words = firm(flow) or ""
    assert ("survives" in words) is robust
    assert bool(scope(flow)) is not robust


def test_tokens_of_head_2_1_end_along_the_two_directions_that_grow_fastest(smollm2: toposcope.Model) -> None:
    flow = toposcope.flow(smollm2, head="2.1", tokens=8).flows[0]
    assert flow.verdict is not None
    assert (flow.verdict.n_pos, flow.verdict.n_neg, flow.verdict.n_zero) == (24, 40, 0)
    assert flow.leading is not None
    assert (flow.leading.directions, flow.leading.width) == (2, 64)
    assert flow.leading.share_at_start < 0.1
    assert flow.leading.share_at_end > 0.98
    assert flow.agreement == "agrees"


def test_the_first_sentence_and_the_next_command_are_those_of_the_run() -> None:
    result = toposcope.flow("smollm2", head=(2, 1), tokens=2, norms="off", horizon=0.01)
    assert "64 of 576" in setup(result)
    assert "RoPE" in setup(result)
    assert [step.line for step in next_steps(result)] == ["toposcope trace smollm2"]


@pytest.mark.parametrize("part", [{"head": "2.1"}, {"head": "0.0"}, {"head": "11.6"}, {"layer": 3}, {"layer": 17}])
def test_heads_and_layers_end_by_themselves(smollm2: toposcope.Model, part: dict[str, Any]) -> None:
    result = toposcope.flow(smollm2, **part)
    assert {flow.status for flow in result.runs} <= {Status.HORIZON, Status.GREW, Status.CONVERGED, Status.AT_REST}
    assert max(flow.evaluations for flow in result.runs) < MOST_EVALUATIONS / 2


def test_the_tolerance_of_a_model_is_exact_enough(smollm2: toposcope.Model) -> None:
    coarse, fine = (toposcope.flow(smollm2, head="2.1", rtol=rtol) for rtol in (None, 1e-5))
    for one, other in zip(coarse.runs, fine.runs, strict=True):
        mine, theirs = (each.observables for each in (one, other))
        assert mine["cosine_mean"][-1] == pytest.approx(theirs["cosine_mean"][-1], abs=0.01)
        assert mine["norm_max"][-1] == pytest.approx(theirs["norm_max"][-1], rel=0.01)
        assert mine["distance_mean"][-1] == pytest.approx(theirs["distance_mean"][-1], rel=0.1)


def test_rope_keeps_the_tokens_of_head_2_2_apart_for_longer(smollm2: toposcope.Model) -> None:
    (flow,) = toposcope.flow(smollm2, head="2.2").flows
    told = flow.position_effect
    assert told is not None
    assert told.clusters.with_position is not None
    assert told.clusters.without == 1 < told.clusters.with_position
    assert told.halved_at.without is not None
    assert told.halved_at.with_position is not None
    assert told.halved_at.with_position > 1.2 * told.halved_at.without
    words = position_line(flow) or ""
    assert "RoPE" in words
    assert f"{told.halved_at.without:.3g}" in words
