"""Flows of heads of SmolLM2: of rounding they say what scan says, and tokens end where V O grows fastest."""

from __future__ import annotations

from itertools import pairwise

import pytest

import toposcope
from toposcope.checkpoints.installed import find
from toposcope.core.errors import NotFound
from toposcope.dynamics.heads import head_dynamics
from toposcope.dynamics.storage import layer_storage_error
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


def test_the_first_sentence_and_the_next_commands_are_those_of_the_run(smollm2: toposcope.Model) -> None:
    shown = {"head": (2, 1), "tokens": 2, "norms": "off", "horizon": 0.01, "causal": True, "seed": 3}
    result = toposcope.flow("smollm2", **shown)
    assert "64 of 576" in setup(result)
    assert "RoPE" in setup(result)
    without = next_steps(result)[0].line.split()
    assert without[:5] == ["toposcope", "flow", "smollm2", "--head", "2.1"]
    given = {name: value for name, value in pairwise(without) if name.startswith("--")}
    assert given["--horizon"] == "0.01"
    assert given["--tokens"] == "2"
    assert given["--norms"] == "off"
    assert given["--seed"] == "3"
    assert given["--encoding"] == "none"
    assert "--causal" in given
    bare = toposcope.flow("smollm2", **shown, encoding="none")
    assert not any("--encoding" in step.line for step in next_steps(bare))
